"""What a simulated engine says on purpose: which scripted answer, and which text under a constraint."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from router.errors import InvalidRequest, ReplicaDied
from router.limits import MAX_SIM_ANSWERS, MAX_SIM_INSTANCE_DEPTH, MAX_SIM_INSTANCE_PARTS, SIM_ANSWER_PROMPT_TOKENS
from workers.answers import Answer, Answers, Said, Speech, choose, formed
from workers.engine import Generation, Sampling, Structured
from workers.json_instance import smallest
from workers.simulator import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

END = 0


class Letters:
    """One token per character."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


def asking(prompt: str, structured: Structured | None = None) -> Generation:
    tokens = struct.pack(f"<{len(prompt)}I", *map(ord, prompt))
    return Generation(request_id="a", tokens=tokens, sampling=Sampling(max_tokens=9, structured=structured))


def answers(*pairs: tuple[str, str]) -> list[Answer]:
    return [Answer(after=after, text=text) for after, text in pairs]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("user: weather? tool: rain", "It rains."),
        ("user: weather?", "I look."),
        ("tool: rain user: weather?", "I look."),
        ("user: hello", None),
        ("user: the weather? and the time?", "Both."),
    ],
)
def test_the_answer_whose_place_comes_last_in_the_prompt_is_given(prompt: str, expected: str | None) -> None:
    """So that a conversation is scripted by what its last message says, whatever was said before."""
    script = answers(("weather?", "I look."), ("rain", "It rains."), ("time?", "Both."), ("and the time?", "Too late."))
    chosen = choose(script, prompt)
    assert (chosen and chosen.text) == expected


def test_an_answer_ends_with_the_end_token_and_a_broken_one_does_not() -> None:
    broken = Answer(after="b", text="hello", fails_after_tokens=2, stall_s=1.5)
    speech = Speech(Letters(), [*answers(("a", "hi")), broken], eos_token=END)
    assert speech.of(asking("a")) == Said(Script([ord("h"), ord("i"), END]))
    assert speech.of(asking("ab")) == Said(Script([ord("h"), ord("e")], ending="error"), 1.5)
    assert speech.of(asking("c")) is None
    assert Speech(Letters(), answers(("a", "hi"))).of(asking("a")) == Said(Script([ord("h"), ord("i")]))
    assert Speech(Letters()).of(asking("a")) is None


def test_a_resumed_answer_goes_on_behind_its_beginning() -> None:
    """What was said before is found without it, though its words stand in the prompt; it does not stall again. One
    that did not begin like this, or has nothing left, is refused: something was lost or doubled on the way."""
    stalling = Answer(after="a", text="hi, a friend", stall_s=2.0)
    speech = Speech(Letters(), [stalling, Answer(after="b", text="hello", fails_after_tokens=3)], eos_token=END)
    rest = Said(Script([*map(ord, "friend"), END]))
    assert speech.of(resumed("a", "hi, a ")) == rest
    assert speech.of(resumed("b", "he")) == Said(Script([ord("l")], ending="error"))
    with pytest.raises(ReplicaDied):
        speech.of(resumed("b", "hel"))
    assert speech.of(resumed("c", "x")) is None
    choice = Structured(kind="choice", spec='["yes", "no"]')
    assert speech.of(resumed("a", "ye", choice)) == Said(Script([ord("s"), END]))
    for wrong in ("hi,,", "i, a", "hi, a friend" + chr(END)):
        with pytest.raises(InvalidRequest, match="did not begin like this"):
            speech.of(resumed("a", wrong))


def resumed(prompt: str, begun: str, structured: Structured | None = None) -> Generation:
    return msgspec.structs.replace(asking(prompt + begun, structured), resumed_tokens=len(begun))


def test_a_constraint_goes_before_a_script() -> None:
    """A title call holds the user's words too. Where the form cannot be followed, the script is taken at its word."""
    speech = Speech(Letters(), answers(("a", "hi")), eos_token=END)
    said = speech.of(asking("a", Structured(kind="choice", spec='["yes", "no"]')))
    assert said == Said(Script([*map(ord, "yes"), END]))
    assert speech.of(asking("a", Structured(kind="structural_tag", spec="{}"))) == speech.of(asking("a"))
    with pytest.raises(InvalidRequest):
        speech.of(asking("b", Structured(kind="structural_tag", spec="{}")))


def test_sim_answer_prompt_tokens_stops_the_search_of_whole_prompts() -> None:
    """Decoding half a million tokens for each request would cost more than the simulation."""
    speech = Speech(Letters(), answers(("a", "hi")))
    assert speech.of(asking("a" + "x" * (SIM_ANSWER_PROMPT_TOKENS - 1))) is not None
    assert speech.of(asking("a" + "x" * SIM_ANSWER_PROMPT_TOKENS)) is None


def test_max_sim_answers_stops_a_script_that_every_request_would_search() -> None:
    one = {"after": "a", "text": "b"}
    assert len(msgspec.convert([one] * MAX_SIM_ANSWERS, Answers)) == MAX_SIM_ANSWERS
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([one] * (MAX_SIM_ANSWERS + 1), Answers)


@pytest.mark.parametrize(
    "wrong",
    [
        {"after": "", "text": "b"},
        {"after": "a", "text": ""},
        {"after": "a"},
        {"after": "a", "text": "b", "stall_s": -1},
        {"after": "a", "text": "b", "fails_after_tokens": 0},
        {"after": "a", "text": "b", "before": "c"},
    ],
)
def test_an_answer_that_could_never_be_said_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([wrong], Answers)


def test_a_choice_is_its_first_text_and_a_schema_its_smallest_instance_in_compact_json() -> None:
    assert formed(Structured(kind="choice", spec='["é", "no"]')) == "é"
    schema = {"type": "object", "properties": {"ü": {"const": [1, 2]}}, "required": ["ü"]}
    assert formed(Structured(kind="json", spec=json.dumps(schema))) == '{"ü":[1,2]}'


@pytest.mark.parametrize("kind", ["regex", "grammar", "structural_tag"])
def test_what_the_simulator_cannot_follow_is_the_callers_fault(kind: Any) -> None:
    """An answer without the form would be a wrong one."""
    with pytest.raises(InvalidRequest, match=f"cannot follow a {kind}: ask for json or choice"):
        formed(Structured(kind=kind, spec="a+"))


@pytest.mark.parametrize(("kind", "spec"), [("choice", "[]"), ("choice", "[1]"), ("choice", "x"), ("json", "{")])
def test_a_constraint_that_is_none_is_the_callers_fault(kind: Any, spec: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be followed"):
        formed(Structured(kind=kind, spec=spec))


LINKED = {"type": "object", "properties": {"next": {"$ref": "#/$defs/link~0"}}, "required": ["next"]}
CHAIN = {
    "$defs": {"link~": {"anyOf": [{"$ref": "#/$defs/more~1"}, {"type": "null"}]}, "more/": LINKED},
    "$ref": "#/$defs/more~1",
}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, None),
        ({}, None),
        ({"type": "null"}, None),
        ({"type": "boolean"}, False),
        ({"type": "integer"}, 0),
        ({"type": "integer", "minimum": 2.5}, 3),
        ({"type": "integer", "maximum": -2.5}, -3),
        ({"type": "number", "minimum": 2.5}, 2.5),
        ({"type": "number", "maximum": -1}, -1),
        ({"type": "string"}, ""),
        ({"type": "string", "minLength": 3}, "xxx"),
        ({"type": ["string", "null"]}, None),
        ({"const": None, "type": "string"}, None),
        ({"enum": ["b", "a"]}, "b"),
        ({"type": "array", "items": {"type": "integer"}}, []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [0, 0]),
        ({"minItems": 1}, [None]),
        ({"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}, {"a": ""}),
        ({"required": ["a"]}, {"a": None}),
        ({"anyOf": [{"type": "object"}, {"type": "string"}]}, ""),
        ({"oneOf": [{"$ref": "#"}, {"enum": [7]}]}, 7),
        ({"allOf": [{"type": "string"}]}, ""),
        (CHAIN, {"next": None}),
    ],
)
def test_the_smallest_instance_of_a_schema(schema: Any, expected: object) -> None:
    """Required properties only, the simplest of alternatives."""
    assert smallest(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"minItems": -1},
        {"required": 3},
        {"allOf": [{"type": "string"}, {"minLength": 2}]},
        {"$ref": "#/$defs/none"},
        {"$ref": "other.json"},
        {"properties": {"a": 1}, "required": ["a"], "type": {"b": 1}},
    ],
)
def test_a_schema_that_cannot_be_followed_is_the_callers_fault(schema: Any) -> None:
    with pytest.raises(InvalidRequest):
        smallest(schema)


def test_max_sim_instance_depth_stops_a_schema_that_contains_itself() -> None:
    with pytest.raises(InvalidRequest, match=f"deeper than the {MAX_SIM_INSTANCE_DEPTH} levels"):
        smallest({"$ref": "#"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "array", "minItems": 200}, "minItems": 200},
        {"type": "string", "minLength": MAX_SIM_INSTANCE_PARTS},
        {"type": "array", "minItems": 10**18},
    ],
)
def test_max_sim_instance_parts_stops_an_answer_without_end(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"more than {MAX_SIM_INSTANCE_PARTS} parts"):
        smallest(schema)
