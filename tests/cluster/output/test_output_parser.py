"""The demo model's answers, read token by token: reasoning, text and calls, and nothing of them lost."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.models.output_parser import VllmParser, parsers_of
from cluster.models.served import load_model
from cluster.output.assembly import Assembly
from cluster.output.events import CallArguments, CallBroken, CallEnd, CallStart, TextDelta, ThinkingDelta, blocks_of
from cluster.output.families import AUTOMATIC, Family
from cluster.output.parsing import PlainParser
from cluster.prompt.canonical import Rules
from cluster.prompt.conversation import Text, Thinking
from router.errors import ModelUnusable
from tests.cluster.output.reading import (
    FORBIDDEN,
    NO_TOOLS,
    OFFERED,
    PROMPT,
    Model,
    call,
    merged,
    model_with,
    without_ids,
)
from workers.engine import TokenDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.models.served import ServedModel
    from cluster.output.events import Event

ANSWERS = {
    row["name"]: row["text"]
    for row in map(json.loads, (Path(__file__).parent / "answers.jsonl").read_text(encoding="utf-8").splitlines())
}
CALL = ANSWERS["a call"]


@pytest.fixture(scope="session")
def tiny(tiny_model: Path) -> Model:
    return model_with(tiny_model, Family("hermes", "qwen3"))


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("text", [Text("Hello, I looked at it.")]),
        ("nothing", []),
        ("white space alone", [Text("\n\n")]),
        ("text that begins with lines", [Text("\n\n  indented")]),
        ("thinking and text", [Thinking("hm, é 🙂"), Text("So.")]),
        ("thinking alone", [Thinking("all of it")]),
        ("thinking without an end", [Thinking("cut in the middle of a")]),
        ("thinking cut in its end mark", [Thinking("hm</thi")]),
        ("empty thinking", [Text("So.")]),
        ("thinking with lines inside", [Thinking("a\n\nb"), Text("So.\n\n")]),
        ("no thinking but nearly", [Text("<thin air")]),
        ("thinking, text and a call", [Thinking("hm"), Text("I look.\n"), call("get", a=1)]),
        ("thinking and a call", [Thinking("hm"), call("get", a=1)]),
        ("a call", [call("get", a=1, t="x")]),
        ("a call in one line", [call("get")]),
        ("keys in the other order", [call("get", a=1)]),
        ("parallel calls", [call("get", a=1), call("put", t="é"), call("get", a=3)]),
        ("parallel calls without a line between", [call("get", a=1), call("put")]),
        ("text between calls", [Text("First\n"), call("get", a=1), Text("then\n"), call("put"), Text("and done.")]),
        ("a call without its end mark", [call("get", a=1)]),
        ("a call without its end mark, then text", [call("get", a=1), Text("That is it.")]),
        ("a call without its end mark, then a call", [call("get", a=1), call("put")]),
        ("more keys behind the arguments", [call("get", a=1), Text(" ok")]),
        ("too many braces", [call("get", a=1), Text(" ok")]),
        ("raw lines in a string", [call("put", t="a\nb\tc")]),
        ("a backslash that escapes nothing", [call("put", t="\\d+ \\( \\u12")]),
        ("marks of text inside a string", [call("put", t="<think>x</think> <tool_response>")]),
        ("a tool that was not offered", [call("fly")]),
        ("a call begun while thinking", [Thinking("I would "), call("get", a=1)]),
        ("cut in the second call", [call("get", a=1), Text('<tool_call>\n{"name": "put", "arguments": {"t": "half')]),
        (
            "broken, then a call",
            [Text('<tool_call>\n{"name": "get", "arguments": {"a": oops}}\n</tool_call>\n'), call("put")],
        ),
    ],
)
def test_an_answer_reads_as(tiny: Model, name: str, blocks: list[object]) -> None:
    assert tiny.blocks(ANSWERS[name]) == blocks


@pytest.mark.parametrize(
    "name",
    [
        *("unicode", "cut in the open mark", "cut in the name", "cut behind the name", "cut in the arguments"),
        *("no JSON at all", "broken before the arguments", "broken in the arguments", "no name", "no arguments"),
        *("the end mark inside a string", "less-than signs", "stray end marks"),
    ],
)
def test_what_is_no_call_is_the_text_that_it_is(tiny: Model, name: str) -> None:
    """To the letter: nothing that was said is lost, nothing is added."""
    blocks = tiny.blocks(ANSWERS[name])
    assert "".join(block.text for block in blocks if isinstance(block, Text)) == ANSWERS[name]
    assert {type(block) for block in blocks} == {Text}


def test_a_call_that_breaks_when_it_was_announced_is_withdrawn(tiny: Model) -> None:
    """A client that saw it begin is told; its block never becomes JSON, and its source follows as text."""
    events = tiny.read(ANSWERS["cut in the arguments"])
    kinds = [type(event) for event in events if not isinstance(event, CallArguments)]
    assert kinds == [TextDelta, TextDelta, CallStart, CallBroken, TextDelta]
    with pytest.raises(ValueError, match="Unterminated string"):
        json.loads("".join(event.text for event in events if isinstance(event, CallArguments)))
    source = ANSWERS["cut in the arguments"].removeprefix("So\n")
    assert blocks_of(events) == (Text("So\n"), Text(source))


def test_a_call_that_breaks_before_it_was_announced_was_never_there(tiny: Model) -> None:
    for name in ("no JSON at all", "broken before the arguments", "no name", "no arguments", "cut behind the name"):
        assert {type(event) for event in tiny.read(ANSWERS[name])} == {TextDelta}


def test_arguments_leave_as_they_are_generated(tiny: Model) -> None:
    pieces = [event.text for event in tiny.read(CALL) if isinstance(event, CallArguments)]
    assert len(pieces) > 3
    assert "".join(pieces) == '{"a": 1, "t": "x"}'


def test_a_call_ends_with_its_last_brace(tiny: Model) -> None:
    """Nobody waits for the closing mark."""
    events = tiny.read(CALL.removesuffix("\n</tool_call>").removesuffix("}"))
    assert isinstance(events[-1], CallEnd)


def test_ids_of_calls_are_their_own(tiny: Model) -> None:
    starts = [event for event in tiny.read(ANSWERS["parallel calls"]) if isinstance(event, CallStart)]
    assert len({start.id for start in starts} - {""}) == 3


def test_a_prompt_that_ends_inside_reasoning_is_gone_on_with(tiny: Model) -> None:
    opened = PROMPT + "<think>\n"
    assert tiny.blocks("hm\n</think>\n\nSo.", prompt=opened) == [Thinking("hm"), Text("So.")]
    assert tiny.blocks("hm, and cut", prompt=opened) == [Thinking("hm, and cut")]
    assert tiny.blocks("</think>\n\n" + CALL, prompt=opened) == [call("get", a=1, t="x")]
    assert tiny.blocks("<think>\nhm\n</think>So.", prompt=opened) == [Thinking("hm"), Text("So.")]


def test_a_prompt_whose_reasoning_is_over_is_answered_with_text(tiny: Model) -> None:
    closed = PROMPT + "<think>\n\n</think>\n\n"
    assert tiny.blocks("So.", prompt=closed) == [Text("So.")]
    assert tiny.blocks("<think>\nagain\n</think>\n\nSo.", prompt=closed) == [Thinking("again"), Text("So.")]


def test_a_users_marks_open_no_reasoning(tiny: Model) -> None:
    prompt = "<|im_start|>user\nWhat does <think> mean?<|im_end|>\n<|im_start|>assistant\n"
    assert tiny.blocks("It opens reasoning.", prompt=prompt) == [Text("It opens reasoning.")]


@pytest.mark.parametrize("conversation", [NO_TOOLS, FORBIDDEN], ids=["no tools", "no calls allowed"])
def test_where_nothing_can_be_called_calls_are_text_and_reasoning_is_reasoning(
    tiny: Model, conversation: object
) -> None:
    answer = "<think>\nhm\n</think>\n\n" + CALL
    assert tiny.blocks(answer, conversation=conversation) == [Thinking("hm"), Text(CALL)]  # type: ignore[arg-type]


def test_reasoning_tokens_are_counted_with_their_marks(tiny: Model) -> None:
    answer = "<think>\nhm hm\n</think>\n\nSo it is."
    parser = tiny.parsers.parser(OFFERED, b"".join(tiny.tokens(PROMPT)))
    assembly = Assembly(tiny.tokenizer, parser, stops=[], prompt_tokens=9)
    assembly.push_all([TokenDelta(tokens=token) for token in tiny.tokens(answer)])
    thought = len(tiny.tokens("<think>\nhm hm\n</think>"))
    assert thought - 2 <= assembly.usage.reasoning_tokens <= thought + 1


@given(name=st.sampled_from(sorted(ANSWERS)), cuts=st.lists(st.integers(0, 60), max_size=8))
@settings(deadline=None, max_examples=120)
def test_any_grouping_of_tokens_gives_the_same_events(tiny: Model, name: str, cuts: list[int]) -> None:
    tokens = tiny.tokens(ANSWERS[name])
    at = sorted({0, len(tokens), *(min(cut, len(tokens)) for cut in cuts)})
    groups = [b"".join(tokens[i:j]) for i, j in pairwise(at)]
    assert assembled(tiny, groups) == assembled(tiny, tokens)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_marks_are_marks_however_they_are_spelled(tiny: Model, name: str) -> None:
    """As the tokens they are, or in letters: models do both, and a form may leave them no other way."""
    letters = [token for letter in ANSWERS[name] for token in tiny.tokens(letter)]
    assert without_ids(blocks_of(tiny.read(letters))) == tiny.blocks(ANSWERS[name])


MARKS = ["<", "<think>", "</think>", "<tool_call>", "</tool_call>", "\n", '{"name": "get", "arguments": {"a": ']
PARTS = [*MARKS, "a", "é", '"x', '"', "1", "}", "}}", "{", ","]


@given(parts=st.lists(st.sampled_from(PARTS), max_size=14))
@settings(deadline=None, max_examples=300)
def test_whatever_a_model_says_its_words_come_out(tiny: Model, parts: list[str]) -> None:
    """Events are well-formed, and of text and reasoning nothing but marks, white space and braces is missing."""
    answer = "".join(parts)
    events = tiny.read(answer)
    check_form(events)
    said = "".join(event.text for event in events if hasattr(event, "text"))
    assert not Counter(c for c in answer if c in "é,") - Counter(said)


def test_a_parser_that_fails_costs_no_turn(
    tiny: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All that it had not said, and the rest of the answer, is text. It is logged once, without what was said."""
    parser = tiny.parsers.parser(OFFERED, b"".join(tiny.tokens(PROMPT)))
    answer = "Look.\n" + CALL
    events: list[Event] = []
    for at, token in enumerate(tiny.tokens(answer)):
        if at == 9:
            monkeypatch.setattr(parser._parser, "parse_delta", None)
        events += parser.push(tiny.tokenizer.bytes_of(token).decode(), int.from_bytes(token, "little"))
    events += parser.finish("")
    assert blocks_of(events) == (Text(answer),)
    assert [record.getMessage() for record in caplog.records if "failed" in record.getMessage()] == [
        "hermes and qwen3 failed (TypeError); the rest of this answer is text"
    ]


def test_a_parser_that_cannot_be_made_costs_no_turn(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made when the answer has begun, and may not like the tools."""
    parser = tiny.parsers.parser(OFFERED, b"".join(tiny.tokens(PROMPT)))
    monkeypatch.setattr(type(parser._kind), "new", None)
    events = [event for token in tiny.tokens("Look.") for event in parser.push("a", int.from_bytes(token, "little"))]
    assert blocks_of([*events, *parser.finish("")]) == (Text("a" * len(tiny.tokens("Look."))),)


def test_what_ends_an_answer_is_no_part_of_it(tiny_model: Path, tiny: Model) -> None:
    parsers = parsers_of(tiny_model, AUTOMATIC, template="<tool_call>", specials=tiny.tokenizer.specials())
    assert parsers is not None
    model = Model(tiny.tokenizer, parsers)
    assert model.blocks("So.<|im_end|>") == [Text("So.")]
    assert model.blocks("<|im_start|>So.") == [Text("So.")]


def test_parsers_that_do_not_fit_are_told_when_the_model_loads(tiny_model: Path) -> None:
    for family in (Family("unheard_of", None), Family(None, "unheard_of"), Family("mistral", None)):
        with pytest.raises(ModelUnusable, match="do not fit"):
            model_with(tiny_model, family).parsers.warm()


def assembled(model: Model, groups: Sequence[bytes]) -> list[Event]:
    parser = model.parsers.parser(OFFERED, b"".join(model.tokens(PROMPT)))
    assembly = Assembly(model.tokenizer, parser, stops=[], prompt_tokens=9)
    deltas = [TokenDelta(tokens=group) for group in groups]
    return merged(assembly.push_all([*deltas, TokenDelta(finish_reason="stop")]).events)


def check_form(events: Sequence[Event]) -> None:
    """A call is started, then argued, then ended or broken, and nothing comes between."""
    running = False
    for event in events:
        if isinstance(event, CallStart):
            assert not running
        elif isinstance(event, TextDelta | ThinkingDelta):
            assert not running
            assert event.text
        else:
            assert running
        running = isinstance(event, CallStart | CallArguments)
    assert not running
    for block in without_ids(blocks_of(events)):
        assert block


def test_an_operators_parsers_are_taken_as_named(tiny_model: Path) -> None:
    def loaded(family: Family) -> ServedModel:
        return load_model(tiny_model, name="tiny", max_model_len=4096, rules=Rules(), parsers=family)

    assert isinstance(loaded(Family("none", "none")).parser(OFFERED, b""), PlainParser)
    assert isinstance(loaded(AUTOMATIC).parser(OFFERED, b""), VllmParser)
    with pytest.raises(ModelUnusable, match="unheard_of"):
        loaded(Family("unheard_of", "auto")).warm()


def test_without_vllm_answers_are_text_and_a_named_parser_is_refused(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of simulated engines needs none."""
    monkeypatch.setattr("cluster.models.output_parser.find_spec", lambda name: None)
    assert parsers_of(tiny_model, AUTOMATIC, template="<tool_call>", specials={}) is None
    with pytest.raises(ModelUnusable, match="need vLLM"):
        parsers_of(tiny_model, Family("hermes", "none"), template="", specials={})
