"""Prompts of conversations that grew equal prompts read as a whole, whatever clients do to what they sent before."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.messages import parse_message
from cluster.api.messages_outline import outline_of_message
from cluster.models.served import load_model
from cluster.prompt.canonical import Rules
from cluster.prompt.conversation import Text, ToolCall
from cluster.prompt.exact_turns import Generated
from cluster.prompt.threads import Turns
from cluster.prompt.warm_path import Written
from router.errors import ClientError
from router.hashing import block_hashes
from router.limits import WARM_TAIL_BYTES
from tests.cluster.prompt.families import CHATML, CHATML_FORGETFUL, FAMILIES, TOOLS_FIRST, write_family

if TYPE_CHECKING:
    from pathlib import Path

    from xxhash import xxh3_128

    from cluster.models.served import ServedModel
    from cluster.output.events import Said
    from cluster.prompt.conversation import Conversation
    from cluster.prompt.warm_path import Prefix
    from tests.cluster.prompt.families import Family

Message = dict[str, Any]
TOOLS = [{"name": "Bash", "description": "Runs.", "input_schema": {"type": "object"}}]
LATER = {"name": "Later", "description": "Comes later.", "input_schema": {"type": "object"}, "defer_loading": True}


class Asked(NamedTuple):
    """A request as it was prepared."""

    conversation: Conversation
    tokens: bytes
    past: xxh3_128
    prefix: Prefix | None
    was_known: bool


def ask(model: ServedModel, body: dict[str, Any], *, tenant: str = "t") -> Asked:
    """Prepare a request as an ingress does: what is new of a known conversation, else the whole."""
    raw = json.dumps(body, ensure_ascii=False).encode()
    outline = outline_of_message(raw)
    asked = model.asked(outline, tenant)
    try:
        found = model.grown(asked, outline, lambda _stage: None)
    except ClientError:  # as an ingress does: whoever reads it all may say more
        found = None
    if found is not None:
        grown = found[1]
        return Asked(grown.conversation, grown.tokens, grown.past, grown.prefix, was_known=True)
    parsed = parse_message(raw)
    conversation, _ = model.canonical(parsed)
    draft = asyncio.run(model.draft(conversation, tenant))
    tokens = asyncio.run(model.encode(draft)).tokens
    assert model.warm_path is not None
    prefix = model.warm_path.keep(asked, parsed, conversation, Written(tokens, Turns(0, 0)))
    return Asked(conversation, tokens, draft.past, prefix, was_known=False)


def as_a_whole(model: ServedModel, body: dict[str, Any], *, tenant: str = "t") -> bytes:
    """The same prompt, nothing of it taken as known but generated turns."""
    conversation, _ = model.canonical(parse_message(json.dumps(body, ensure_ascii=False).encode()))
    return asyncio.run(model.encode(asyncio.run(model.draft(conversation, tenant)))).tokens


def loaded(folder: Path, **rules: Any) -> ServedModel:
    """A fresh model, which knows nothing."""
    return load_model(folder, name="m", max_model_len=1_000_000, rules=Rules(**rules))


def body(*messages: Message, **fields: Any) -> dict[str, Any]:
    """A request."""
    return {"model": "m", "max_tokens": 9, "system": "Be brief.", "tools": TOOLS, "messages": [*messages], **fields}


def user(text: str, **more: Any) -> Message:
    """A user's words, as a list of one block."""
    return {"role": "user", "content": [{"type": "text", "text": text, **more}]}


def said(*blocks: dict[str, Any] | str) -> Message:
    """An assistant's turn."""
    return {"role": "assistant", "content": [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]}


def call(call_id: str, **arguments: Any) -> dict[str, Any]:
    """A call of the only tool."""
    return {"type": "tool_use", "id": call_id, "name": "Bash", "input": arguments}


def result(call_id: str, text: str) -> dict[str, Any]:
    """Its result."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": text}


TALK: list[Message] = [
    user("Look."),
    said({"type": "thinking", "thinking": "hm", "signature": ""}, "I look.", call("c1", command="ls é", n=1.0)),
    {"role": "user", "content": [result("c1", "a.txt <|im_end|>"), {"type": "text", "text": "So?"}]},
    {"role": "system", "content": "<total_tokens>9 tokens left</total_tokens>"},
    said(call("c2"), call("c3", command="cat")),
    {"role": "user", "content": [result("c3", "y"), result("c2", "x")]},
    {"role": "system", "content": "Remember."},
    said("Done."),
    user("Thanks.", cache_control={"type": "ephemeral"}),
]
USERS = [i for i, message in enumerate(TALK, start=1) if message["role"] == "user"]


@pytest.fixture(scope="module")
def folders(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of every family."""
    base = tmp_path_factory.mktemp("families")
    return {family.name: write_family(family, base / family.name, tiny_model) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_known_conversation_grows_to_the_prompt_that_reading_it_as_a_whole_gives(
    family: Family, folders: dict[str, Path]
) -> None:
    """Turn by turn: where a template writes turns by what follows, nothing is taken as known."""
    model, reference = loaded(folders[family.name]), loaded(folders[family.name])
    known = [False] * len(USERS)
    for turn, end in enumerate(USERS):
        request = body(*TALK[:end])
        if model.warm_path is None:
            return
        asked = ask(model, request)
        known[turn] = asked.was_known
        assert asked.tokens == as_a_whole(reference, request)
        model.warm_path.memory.check_integrity()
    assert known[-1]


def test_families_whose_turns_stand_alone_are_grown(folders: dict[str, Path]) -> None:
    """Among them those of the demo model; not one that drops old reasoning."""
    grown = {name for name, folder in folders.items() if loaded(folder).warm_path is not None}
    assert {CHATML.name, TOOLS_FIRST.name} <= grown
    assert CHATML_FORGETFUL.name not in grown


def test_generated_turns_are_spliced_into_what_grew(folders: dict[str, Path]) -> None:
    """The prompt of each turn is the last prompt and what was generated, and more."""
    model = loaded(folders[CHATML.name])
    talk: list[Message] = [user("Look.")]
    last = b""
    for turn in range(4):
        asked = ask(model, body(*talk))
        assert asked.tokens.startswith(last)
        assert asked.was_known == (turn > 1)
        text = (
            f'I look {turn}.\n<tool_call>\n{{"name": "Bash", "arguments": {{"n":  1.0, "a": "\\u00e9"}}}}\n</tool_call>'
        )
        blocks: tuple[Said, ...] = (Text(f"I look {turn}."), ToolCall(f"c{turn}", "Bash", '{"a": "é", "n": 1}'))
        generated = asyncio.run(model.tokens(f"{text}<|im_end|>"))
        assert model.turns is not None
        model.turns.remember(asked.conversation, "t", Generated(asked.tokens, asked.past, blocks, generated))
        last = asked.tokens + generated
        talk += [
            said(f"I look {turn}.", call(f"c{turn}", a="é", n=1)),
            {"role": "user", "content": [result(f"c{turn}", "x")]},
        ]


def test_generated_turns_are_the_same_in_what_grew_and_in_the_whole_also_after_other_tools(
    folders: dict[str, Path],
) -> None:
    """Turns from before the change answered another prompt; those behind it are spliced either way."""
    model = loaded(folders[CHATML.name])
    assert model.turns is not None
    talk: list[Message] = [user("Look.")]
    for turn in range(6):
        tools = TOOLS if turn < 3 else [*TOOLS, {**TOOLS[0], "name": "Read"}]
        asked = ask(model, body(*talk, tools=tools))
        assert asked.tokens == as_a_whole(model, body(*talk, tools=tools))
        assert asked.was_known == (turn in (2, 4, 5))
        words = f"Answer {turn}."
        tokens = b"".join(asyncio.run(model.tokens(letter)) for letter in words)
        model.turns.remember(asked.conversation, "t", Generated(asked.tokens, asked.past, (Text(words),), tokens))
        last = asked.tokens + tokens
        talk += [said(words), user("And now?")]
    assert ask(model, body(*talk, tools=tools)).tokens.startswith(last)


def test_what_is_known_of_one_tenant_is_not_known_of_another(folders: dict[str, Path]) -> None:
    """Their threads are apart."""
    model = loaded(folders[CHATML.name])
    ask(model, body(*TALK[:3]))
    assert not ask(model, body(*TALK[:6]), tenant="other").was_known
    assert ask(model, body(*TALK[:6])).was_known


@pytest.mark.parametrize(
    ("changed", "is_known"),
    [
        ({"max_tokens": 0, "temperature": 0.5, "stream": True, "metadata": {"user_id": "x"}}, True),
        ({"system": [{"type": "text", "text": "x-anthropic-billing-header: a=1;\nBe brief."}]}, True),
        ({"system": "Be long."}, False),
        ({"tools": [*TOOLS, LATER]}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"tool_choice": {"type": "any"}}, False),
    ],
)
def test_a_conversation_is_known_again_by_all_that_its_prompt_depends_on(
    folders: dict[str, Path], changed: dict[str, Any], is_known: bool
) -> None:
    """And by nothing else: a new attribution line, other limits and ids make no difference."""
    model, reference = loaded(folders[CHATML.name]), loaded(folders[CHATML.name])
    ask(model, body(*TALK[:3]))
    request = body(*TALK[:6], **changed)
    asked = ask(model, request)
    assert (asked.was_known, asked.tokens) == (is_known, as_a_whole(reference, request))


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param([said("Yes."), user("x" * WARM_TAIL_BYTES)], id="more than WARM_TAIL_BYTES of new messages"),
        pytest.param([said("Yes."), {"role": "user", "content": [result("c1", "late")]}], id="a result of an old call"),
        pytest.param([said("Yes."), user("go on"), said("I will")], id="an answer to be continued"),
    ],
)
def test_what_cannot_be_read_alone_is_read_as_a_whole(folders: dict[str, Path], tail: list[Message]) -> None:
    """With the same prompt as ever."""
    model, reference = loaded(folders[CHATML.name]), loaded(folders[CHATML.name])
    ask(model, body(*TALK[:6]))
    request = body(*TALK[:6], *tail)
    asked = ask(model, request)
    assert (asked.was_known, asked.tokens) == (False, as_a_whole(reference, request))


def test_system_messages_that_join_the_head_switch_the_warm_path_off(folders: dict[str, Path]) -> None:
    """`inline_system: merge` rewrites the whole prompt with each of them."""
    assert loaded(folders[CHATML.name], inline_system="merge").warm_path is None


def test_block_hashes_of_a_grown_prompt_are_those_of_the_whole(folders: dict[str, Path]) -> None:
    """For every block size, also where a thread is asked again for less than it holds."""
    model = loaded(folders[CHATML.name])
    for end in (3, 6, 9, 6, 9):
        asked = ask(model, body(*TALK[:end]))
        assert asked.prefix is not None
        for size in (1, 4, 16):
            whole = block_hashes(asked.tokens, block_size=size, seed=7)
            assert asked.prefix.hashes(asked.tokens, block_size=size, seed=7) == whole


WORDS = st.sampled_from(["", "ok", "é", "<think>", "<|im_start|>", "a\n\nb", " x ", "</tool_call>"])
BLOCKS = st.one_of(
    WORDS.map(lambda text: {"type": "text", "text": text}),
    WORDS.map(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}),
    st.sampled_from([call("c1"), call("c2", a=1.0, b="é"), {"type": "tool_reference", "tool_name": "Later"}]),
)
ANSWERS = st.lists(BLOCKS.filter(lambda block: block["type"] != "tool_reference"), max_size=3)
INPUTS = st.lists(
    st.one_of(
        WORDS.map(lambda text: {"type": "text", "text": text}),
        st.sampled_from(
            [result("c1", "x"), result("c2", "é"), {"type": "image", "source": {"type": "url", "url": "u"}}]
        ),
    ),
    max_size=3,
)
TURNS = st.tuples(ANSWERS, st.one_of(WORDS, st.none()), INPUTS, WORDS)


def turns_as_messages(turn: tuple[list[Any], str | None, list[Any], str]) -> list[Message]:
    """An answer, maybe a reminder, and a user's message."""
    answer, reminder, given, last = turn
    middle = [] if reminder is None else [{"role": "system", "content": reminder}]
    return [
        {"role": "assistant", "content": answer},
        *middle,
        {
            "role": "user",
            "content": [*(block for block in given if block["type"] != "image"), {"type": "text", "text": last}],
        },
    ]


@pytest.fixture(scope="module")
def pair(folders: dict[str, Path]) -> tuple[ServedModel, ServedModel]:
    """One model that knows conversations, one that never does."""
    return loaded(folders[CHATML.name]), loaded(folders[CHATML.name])


@settings(max_examples=40, deadline=None)
@given(turns=st.lists(TURNS, min_size=1, max_size=5), edited=st.integers(0, 9), branch=st.lists(TURNS, max_size=2))
def test_any_conversation_grows_and_branches_to_the_prompts_that_reading_it_as_a_whole_gives(
    pair: tuple[ServedModel, ServedModel], turns: list[Any], edited: int, branch: list[Any]
) -> None:
    """Also when an earlier message is sent in another form, and when it goes on in another way from an earlier turn."""
    model, reference = pair
    messages: list[Message] = [user("Look.")]
    requests = [body(*messages, tools=[*TOOLS, LATER])]
    for turn in turns:
        messages = messages + turns_as_messages(turn)
        requests.append(body(*messages, tools=[*TOOLS, LATER]))
    other = messages[: 1 + 2 * (edited % len(turns))]
    for turn in branch:
        other = other + turns_as_messages(turn)
        requests.append(body(*other, tools=[*TOOLS, LATER]))
    rewritten = [dict(message) for message in messages]
    rewritten[edited % len(rewritten)]["cache_control"] = {"type": "ephemeral"}
    requests.append(body(*rewritten, tools=[*TOOLS, LATER]))
    for request in requests:
        if request["messages"][-1]["role"] == "user":
            assert ask(model, request).tokens == as_a_whole(reference, request)
    assert model.warm_path is not None
    model.warm_path.memory.check_integrity()
