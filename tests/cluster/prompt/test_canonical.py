"""Canonical rules: what they remove, what they move, and what they never touch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from cluster.prompt.canonical import Canonicaliser, Rules
from cluster.prompt.conversation import (
    Block,
    Change,
    Conversation,
    Media,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolReference,
    ToolRemoval,
    ToolResult,
)
from cluster.prompt.plain import join_lines, plain_text
from router.errors import InvalidRequest, ModelUnusable
from router.limits import MAX_CHANGE_CHARS, MAX_CHANGES, MAX_MESSAGES
from tests.cluster.prompt.conversations import LINE, PLOT, READ, conversation, conversations

ALL = Canonicaliser(Rules(volatile_lines=("Session id: ",)))
OFF = Rules(
    strip_anthropic_preamble=False,
    equivalent_forms=False,
    deferred_tools=False,
    media_placeholders=False,
    leading_system=False,
    inline_system="native",
)
KINDS = [
    ALL,
    Canonicaliser(Rules(inline_system="merge")),
    Canonicaliser(Rules(inline_system="native")),
    Canonicaliser(Rules(leading_system=False)),
    Canonicaliser(Rules(deferred_tools=False, equivalent_forms=False, strip_anthropic_preamble=False)),
]

REPLY = conversation([], [("assistant", ["Fine."]), ("user", ["Go on."])]).messages


def user_texts(conversation: Conversation) -> list[str]:
    return [b.text for m in conversation.messages if m.role == "user" for b in m.blocks if isinstance(b, Text)]


def result_texts(conversation: Conversation) -> list[str]:
    results = [b for m in conversation.messages for b in m.blocks if isinstance(b, ToolResult)]
    return [b.text for result in results for b in result.content if isinstance(b, Text)]


def is_subsequence(part: list[str], whole: list[str]) -> bool:
    rest = iter(whole)
    return all(text in rest for text in part)


@given(conversation=conversations)
@settings(deadline=None, max_examples=300)
def test_rules_are_idempotent(conversation: Conversation) -> None:
    """A canonical conversation stays as it is; only hidden tools are told again, for they are hidden again."""
    for rules in KINDS:
        once, _ = rules.apply(conversation)
        again, changes = rules.apply(once)
        assert again == once
        assert {(change.rule, change.path) for change in changes} <= {("deferred_tools", "tools")}


@given(conversation=conversations)
@settings(deadline=None, max_examples=300)
def test_no_rule_touches_what_users_assistants_and_tools_said(conversation: Conversation) -> None:
    for rules in KINDS:
        canonical, changes = rules.apply(conversation)
        said = [message.blocks for message in conversation.messages if message.role == "assistant" and message.blocks]
        kept = [message.blocks for message in canonical.messages if message.role == "assistant" and message.blocks]
        assert kept == said
        assert is_subsequence(user_texts(conversation), user_texts(canonical))
        assert is_subsequence(result_texts(conversation), result_texts(canonical))
        assert (canonical == conversation) or changes


@given(conversation=conversations)
@settings(deadline=None, max_examples=200)
def test_no_attribution_line_survives_in_leading_system_text(conversation: Conversation) -> None:
    canonical, _ = ALL.apply(conversation)
    lines = [line for block in canonical.system for line in block.text.split("\n")]
    assert not any(line.lstrip(" \t").lower().startswith("x-anthropic-billing-header:") for line in lines)


@given(conversation=conversations)
@settings(deadline=None, max_examples=200)
def test_a_canonical_conversation_is_words_thoughts_calls_and_results(conversation: Conversation) -> None:
    canonical, _ = ALL.apply(conversation)
    blocks = [block for message in canonical.messages for block in message.blocks]
    inner = [block for result in blocks if isinstance(result, ToolResult) for block in result.content]
    assert not any(isinstance(block, Media | ToolReference | ToolRemoval) for block in [*blocks, *inner])
    assert not any(message.role == "system" for message in canonical.messages)


@given(conversation=conversations)
@settings(deadline=None, max_examples=200)
def test_a_later_request_of_a_conversation_starts_as_the_one_before(conversation: Conversation) -> None:
    """Position-invariant: what an answer and a next question follow is said as it was when it stood at the end."""
    longer = Conversation(
        api="messages",
        model="m",
        system=conversation.system,
        messages=(*conversation.messages, *REPLY),
        tools=conversation.tools,
    )
    before, after = ALL.apply(conversation)[0], ALL.apply(longer)[0]
    assert after.system == before.system
    assert after.messages[: len(before.messages)] == before.messages


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{LINE}\nBe brief.", "Be brief."),
        (f"Be brief.\n{LINE}\r\nBe kind.", "Be brief.\nBe kind."),
        (f"\t{LINE.upper()}\n{LINE}\nBe brief.", "Be brief."),
        (f"Be brief. {LINE}", f"Be brief. {LINE}"),
        ("x-anthropic-other: 1\nBe brief.", "x-anthropic-other: 1\nBe brief."),
    ],
)
def test_the_line_goes_and_its_neighbours_stay(before: str, after: str) -> None:
    canonical, _ = ALL.apply(conversation([before]))
    assert canonical.system == (Text(after),)


@pytest.mark.parametrize("block", [LINE, f"{LINE}\n", f"{LINE}\n\n", f"{LINE}\n{LINE}"])
def test_a_system_text_of_nothing_else_equals_none(block: str) -> None:
    assert ALL.apply(conversation([block]))[0] == conversation()


def test_the_removed_line_is_kept_for_logs() -> None:
    _, changes = ALL.apply(conversation(["Be brief.", f"{LINE}\nBe kind.\nSession id: 7\n"]))
    assert changes == (
        Change("attribution_line", "system[1]", f"{LINE}\n", ""),
        Change("volatile_line", "system[1]", "Session id: 7\n", ""),
    )


def test_a_flood_of_volatile_lines_is_one_bounded_change_per_block() -> None:
    flood = "".join(f"{LINE}\nSession id: {i}\nBe {i}.\n" for i in range(5_000))
    canonical, changes = ALL.apply(conversation([flood, LINE]))
    assert canonical.system == (Text("".join(f"Be {i}.\n" for i in range(5_000))),)
    assert [(change.rule, change.path) for change in changes] == [
        ("attribution_line", "system[0]"),
        ("attribution_line", "system[1]"),
        ("volatile_line", "system[0]"),
    ]
    assert [len(change.before) for change in changes] == [MAX_CHANGE_CHARS, len(LINE), MAX_CHANGE_CHARS]


def test_a_flood_of_changes_is_reported_in_part() -> None:
    canonical, changes = ALL.apply(conversation(["Hi"], [("user", [])] * (MAX_CHANGES + 1)))
    assert canonical == conversation(["Hi"])
    assert len(changes) == MAX_CHANGES


def test_a_moved_system_message_is_reported_by_its_beginning() -> None:
    text = "x" * (MAX_CHANGE_CHARS + 1)
    _, (change,) = ALL.apply(conversation([], [("user", ["Hi"]), ("system", [text])]))
    assert change.before == change.after == text[:MAX_CHANGE_CHARS]


@pytest.mark.timeout(30)
def test_a_flood_of_system_messages_moves_whole_and_in_order() -> None:
    """So many that a pass over the moved ones per message would take minutes."""
    flood: list[tuple[Role, list[str]]] = [("system", [str(i)]) for i in range(MAX_MESSAGES)]
    canonical, _ = ALL.apply(conversation([], [*flood, ("user", ["Hi"])]))
    assert canonical.system == tuple(Text(str(i)) for i in range(MAX_MESSAGES))
    assert [message.role for message in canonical.messages] == ["user"]


def test_system_messages_before_the_first_answer_join_the_system_text_without_their_line() -> None:
    canonical, changes = ALL.apply(
        conversation(["Be brief."], [("user", ["Hi"]), ("system", [f"{LINE}\nHut."]), ("assistant", ["Yes"])])
    )
    assert canonical.system == (Text("Be brief."), Text("Hut."))
    assert [message.role for message in canonical.messages] == ["user", "assistant"]
    assert [(change.rule, change.path) for change in changes] == [
        ("attribution_line", "messages[1].content[0]"),
        ("leading_system", "messages[1]"),
    ]


def test_a_message_without_content_is_no_message() -> None:
    canonical, changes = ALL.apply(conversation([""], [("user", ["Hi"]), ("user", []), ("system", [""])]))
    assert canonical == conversation([], [("user", ["Hi"])])
    assert {change.path for change in changes} == {"system[0]", "messages[1]", "messages[2]", "messages[2].content[0]"}


def test_every_rule_has_a_switch() -> None:
    request = conversation(
        [LINE, ""], [("user", []), ("system", ["Hut."]), ("assistant", ["Yes."]), ("user", []), ("system", ["Wind."])]
    )
    assert Canonicaliser(OFF).apply(request) == (request, ())


@pytest.mark.parametrize("pattern", ["(", "a*", ""])
def test_patterns_that_cannot_be_meant_are_refused(pattern: str) -> None:
    with pytest.raises(ModelUnusable, match="volatile_lines"):
        Canonicaliser(Rules(volatile_lines=(pattern,)))


def in_place(*messages: tuple[Role, list[Block | str]], rules: Rules | None = None) -> list[tuple[str, str]]:
    """Role and words of every message, behind a first question and answer."""
    request = conversation([], [("user", ["Hi"]), ("assistant", ["Yes"]), *messages])
    canonical, _ = Canonicaliser(rules or Rules()).apply(request)
    return [(message.role, join_lines(map(plain_text, message.blocks))) for message in canonical.messages[2:]]


def reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def test_a_later_system_message_stands_in_place_as_a_users_reminder() -> None:
    assert in_place(("user", ["And?"]), ("system", ["Wind."])) == [("user", f"And?\n{reminder('Wind.')}")]
    assert in_place(("system", ["Wind."])) == [("user", reminder("Wind."))]
    assert in_place(("system", ["Wind."]), ("user", ["And?"])) == [("user", reminder("Wind.")), ("user", "And?")]


def test_a_reminder_is_not_wrapped_twice_and_an_empty_one_is_none() -> None:
    assert in_place(("user", ["And?"]), ("system", [reminder("Wind.")])) == [("user", f"And?\n{reminder('Wind.')}")]
    assert in_place(("user", ["And?"]), ("system", [" "])) == [("user", "And?")]


def test_several_blocks_are_one_reminder_as_one_text_is() -> None:
    assert in_place(("system", ["Wind.", "Rain."])) == in_place(("system", ["Wind.\nRain."]))


CALL = ToolCall("call_1", "read", "{}")
OTHER = ToolCall("call_2", "read", "{}")
RESULT = ToolResult("call_1", (Text("row"),))
SECOND = ToolResult("call_2", (Text("row 2"),))


def test_a_system_message_never_parts_a_call_from_its_result() -> None:
    request = conversation(
        [],
        [("user", ["Hi"]), ("assistant", [CALL, OTHER]), ("system", ["Wind."]), ("user", [RESULT]),
         ("system", ["Rain."]), ("user", [SECOND, "And?"]), ("system", ["Sun."])],
    )  # fmt: skip
    canonical, changes = Canonicaliser(Rules()).apply(request)
    assert canonical.messages[2].blocks == (RESULT,)
    behind = [Text(reminder("Wind.")), Text(reminder("Rain."))]
    assert canonical.messages[3].blocks == (SECOND, *behind, Text("And?"), Text(reminder("Sun.")))
    assert [change.path for change in changes] == ["messages[2]", "messages[4]", "messages[6]"]


def test_where_a_template_takes_system_messages_they_stay_but_behind_results() -> None:
    native = Rules(inline_system="native")
    assert in_place(("user", ["And?"]), ("system", ["Wind."]), rules=native) == [("user", "And?"), ("system", "Wind.")]
    request = conversation(
        [], [("user", ["Hi"]), ("assistant", [CALL]), ("system", ["Wind."]), ("user", [RESULT, "And?"])]
    )
    canonical, changes = Canonicaliser(native).apply(request)
    assert [message.role for message in canonical.messages] == ["user", "assistant", "user", "system"]
    assert [change.rule for change in changes] == ["inline_system"]


def test_merged_system_messages_join_the_head() -> None:
    request = conversation(["Be brief."], [("user", ["Hi"]), ("assistant", ["Yes"]), ("system", ["Wind."])])
    canonical, changes = Canonicaliser(Rules(inline_system="merge")).apply(request)
    assert canonical == conversation(["Be brief.", "Wind."], [("user", ["Hi"]), ("assistant", ["Yes"])])
    assert [(change.rule, change.path) for change in changes] == [("inline_system", "messages[2]")]


def test_the_last_turn_is_a_users_after_a_trailing_system_message() -> None:
    for trailing in ([("user", ["And?"]), ("system", ["Wind."])], [("system", ["Wind."])]):
        assert in_place(*trailing)[-1][0] == "user"  # type: ignore[arg-type]


@pytest.mark.timeout(30)
def test_a_flood_of_later_system_messages_is_placed_in_linear_time() -> None:
    flood: list[tuple[Role, list[str]]] = [("system", [str(i)]) for i in range(MAX_MESSAGES)]
    request = conversation([], [("user", ["Hi"]), ("assistant", ["Yes"]), ("user", ["And?"]), *flood])
    canonical, changes = ALL.apply(request)
    assert len(canonical.messages[-1].blocks) == MAX_MESSAGES + 1
    assert len(changes) == MAX_CHANGES


def test_a_referred_tool_is_described_where_it_stands_in_the_same_words_every_turn() -> None:
    found = ToolResult("call_1", (ToolReference("plot"), ToolReference("nobody")))
    request = conversation([], [("user", ["Hi"]), ("assistant", [CALL]), ("user", [found])], [PLOT, READ])
    canonical, changes = ALL.apply(request)
    expanded = canonical.messages[2].blocks[0]
    assert isinstance(expanded, ToolResult)
    described, unknown = map(plain_text, expanded.content)
    assert described == ('The tool plot can be called from here on.\nDraws a chart.\nParameters: {"type": "object"}')
    assert unknown == "nobody"
    assert canonical.tools == (PLOT, READ)
    assert [(change.rule, change.path) for change in changes] == [
        ("deferred_tools", "tools"),
        ("deferred_tools", "messages[2].content[0].content[0]"),
        ("deferred_tools", "messages[2].content[0].content[1]"),
    ]
    later = Canonicaliser(Rules()).apply(conversation([], [("user", [ToolReference("plot")])], [READ, PLOT]))[0]
    assert later.messages[0].blocks == (Text(described),)


def test_a_removed_tool_is_said_in_words_also_in_a_system_message() -> None:
    canonical, _ = ALL.apply(
        conversation(
            ["Be brief."], [("user", ["Hi"]), ("system", [ToolRemoval("plot"), ToolReference("read")])], [READ]
        )
    )
    assert canonical.system[1] == Text("The tool plot can no longer be called.")
    assert canonical.system[2].text.startswith("The tool read can be called from here on.\nReads a file.\n")


def test_all_tools_are_listed_where_deferral_is_switched_off() -> None:
    canonical, changes = Canonicaliser(Rules(deferred_tools=False)).apply(conversation([], [("user", ["Hi"])], [PLOT]))
    assert [tool.deferred for tool in canonical.tools] == [False]
    assert [(change.rule, change.path) for change in changes] == [("all_tools_listed", "tools[0]")]


@pytest.mark.timeout(30)
def test_a_flood_of_references_to_a_large_tool_shares_one_text() -> None:
    large = Tool(name="plot", description="x" * 1_000_000)
    flood = [ToolReference("plot")] * 10_000
    canonical, changes = ALL.apply(conversation([], [("user", flood)], [large]))
    assert len({id(block.text) for block in canonical.messages[0].blocks if isinstance(block, Text)}) == 1
    assert len(changes) == MAX_CHANGES


IMAGE = Media("image", "image/png")


def test_an_old_image_becomes_a_fixed_text_with_a_warning() -> None:
    seen = ToolResult("call_1", (Text("up"), IMAGE))
    request = conversation([], [("user", ["See", IMAGE]), ("assistant", [CALL]), ("user", [seen, "And?"])])
    canonical, changes = ALL.apply(request)
    placeholder = Text("[image left out: this model reads text only]")
    assert canonical.messages[0].blocks == (Text("See"), placeholder)
    assert canonical.messages[2].blocks == (ToolResult("call_1", (Text("up"), placeholder)), Text("And?"))
    assert changes == (
        Change("media", "messages[0].content[1]", "image/png", placeholder.text),
        Change("media", "messages[2].content[0].content[1]", "image/png", placeholder.text),
    )


def test_an_image_in_the_newest_user_message_is_refused_by_its_place() -> None:
    request = conversation([], [("user", ["Hi"]), ("assistant", ["Yes"]), ("user", ["See", IMAGE]), ("system", ["!"])])
    with pytest.raises(
        InvalidRequest, match=r"messages\[2\]\.content\[1\]: this model reads text only; describe the image"
    ):
        ALL.apply(request)


def test_without_placeholders_any_image_is_refused() -> None:
    request = conversation([], [("user", [IMAGE]), ("assistant", ["Yes"]), ("user", ["Go on."])])
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.content\[0\]"):
        Canonicaliser(OFF).apply(request)
