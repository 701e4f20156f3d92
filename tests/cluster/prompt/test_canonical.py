"""Canonical rules: what they remove, and what they never touch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.prompt.canonical import Canonicaliser, Rules
from cluster.prompt.conversation import Change, Conversation, Message, Role, Text
from cluster.prompt.template import join_lines, turns_of
from router.errors import ModelUnusable
from router.limits import MAX_CHANGE_CHARS, MAX_CHANGES, MAX_MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable

LINE = "x-anthropic-billing-header: cc_version=2.1.332.0ab;"
ALL = Canonicaliser(Rules(volatile_lines=("Session id: ",)))


def conversation(system: Iterable[str] = (), messages: Iterable[tuple[Role, Iterable[str]]] = ()) -> Conversation:
    return Conversation(
        api="messages",
        model="m",
        system=tuple(map(Text, system)),
        messages=tuple(Message(role, tuple(map(Text, blocks))) for role, blocks in messages),
    )


texts = st.lists(
    st.sampled_from([LINE, LINE.upper(), "  " + LINE, "\n", "\r\n", "Be brief.", "Session id: 7", " ", "é風", ""]),
    max_size=6,
).map("".join)
blocks = st.lists(texts, max_size=3)
conversations = st.builds(
    conversation,
    system=blocks,
    messages=st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), blocks), max_size=6),
)


def spoken(conversation: Conversation, role: Role) -> list[tuple[Text, ...]]:
    return [message.blocks for message in conversation.messages if message.role == role and message.blocks]


@given(conversation=conversations)
@settings(deadline=None, max_examples=400)
def test_rules_are_idempotent(conversation: Conversation) -> None:
    once, _ = ALL.apply(conversation)
    assert ALL.apply(once) == (once, ())


@given(conversation=conversations)
@settings(deadline=None, max_examples=400)
def test_no_rule_touches_what_users_and_assistants_said(conversation: Conversation) -> None:
    canonical, changes = ALL.apply(conversation)
    for role in ("user", "assistant"):
        assert spoken(canonical, role) == spoken(conversation, role)
    assert (canonical == conversation) == (not changes)


@given(conversation=conversations)
@settings(deadline=None, max_examples=200)
def test_no_attribution_line_survives_in_leading_system_text(conversation: Conversation) -> None:
    canonical, _ = ALL.apply(conversation)
    lines = [line for block in canonical.system for line in block.text.split("\n")]
    assert not any(line.lstrip(" \t").lower().startswith("x-anthropic-billing-header:") for line in lines)


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
    assert canonical == conversation([str(i) for i in range(MAX_MESSAGES)], [("user", ["Hi"])])


def test_system_messages_before_the_first_answer_join_the_system_text_without_their_line() -> None:
    canonical, changes = ALL.apply(
        conversation(["Be brief."], [("user", ["Hi"]), ("system", [f"{LINE}\nHut."]), ("assistant", ["Yes"])])
    )
    assert canonical == conversation(["Be brief.", "Hut."], [("user", ["Hi"]), ("assistant", ["Yes"])])
    assert [(change.rule, change.path) for change in changes] == [
        ("attribution_line", "messages[1].content[0]"),
        ("leading_system", "messages[1]"),
    ]


def test_a_message_without_content_is_no_message() -> None:
    canonical, changes = ALL.apply(conversation([""], [("user", ["Hi"]), ("user", []), ("system", [""])]))
    assert canonical == conversation([], [("user", ["Hi"])])
    assert {change.path for change in changes} == {"system[0]", "messages[1]", "messages[2]", "messages[2].content[0]"}


def test_every_rule_has_a_switch() -> None:
    off = Canonicaliser(Rules(attribution_line=False, equivalent_forms=False, leading_system=False))
    request = conversation([LINE, ""], [("user", []), ("system", ["Hut."])])
    assert off.apply(request) == (request, ())


@pytest.mark.parametrize("pattern", ["(", "a*", ""])
def test_patterns_that_cannot_be_meant_are_refused(pattern: str) -> None:
    with pytest.raises(ModelUnusable, match="volatile_lines"):
        Canonicaliser(Rules(volatile_lines=(pattern,)))


def test_blocks_start_on_lines_of_their_own() -> None:
    assert join_lines([Text("a"), Text("b\n"), Text("c"), Text(""), Text("d")]) == "a\nb\nc\nd"
    assert join_lines([Text(""), Text("a")]) == "a"


def test_an_answer_is_one_text_however_it_comes_back() -> None:
    turns = list(turns_of(conversation([], [("assistant", ["One", " and two"]), ("user", ["x", "y"])])))
    assert [turn.content for turn in turns] == ["One and two", "x\ny"]
