"""What a simulated engine says on purpose: answers scripted by a prompt's end, or a text in the form it must have."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

import msgspec

from router.errors import InvalidRequest, ReplicaDied
from router.hashing import BYTES_PER_TOKEN
from router.limits import MAX_SIM_ANSWERS, SIM_ANSWER_PROMPT_TOKENS
from workers.json_instance import smallest
from workers.simulator import Script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.engine import Generation, Structured

_Text = Annotated[str, msgspec.Meta(min_length=1)]

_Choices = Annotated[list[str], msgspec.Meta(min_length=1)]


class Codec(Protocol):
    """A model's own tokenizer, its marks included both ways."""

    def encode(self, text: str) -> Sequence[int]:
        """Tokens of `text`."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`."""
        ...


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the end of a prompt holds `after`: say `text` and end. Before the first token `stall_s` seconds pass, as in
    a long prefill; after `fails_after_tokens` the generation breaks, as under an engine's fault."""

    after: _Text
    text: _Text
    stall_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    fails_after_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


Answers = Annotated[tuple[Answer, ...], msgspec.Meta(max_length=MAX_SIM_ANSWERS)]


class Said(NamedTuple):
    """What a request is to generate, and the seconds before its first token."""

    script: Script
    stall_s: float = 0.0


class Speech:
    """Finds what a simulated engine has to say. Scripted answers and constraints alike end with the end token."""

    def __init__(self, codec: Codec, answers: Sequence[Answer] = (), *, eos_token: int | None = None) -> None:
        self._codec = codec
        self._answers = answers
        self._end = [] if eos_token is None else [eos_token]

    def of(self, generation: Generation) -> Said | None:
        """None when the request is free to generate anything. A list of choices or a schema goes before a scripted
        answer; for other constraints an answer is taken at its word. A resumed answer goes on behind its beginning.

        Raises `InvalidRequest` for a constraint that it cannot meet, and for a beginning that is not the answer's;
        `ReplicaDied` where an answer broke before and would again."""
        begun = generation.resumed_tokens * BYTES_PER_TOKEN
        if not begun:
            return self._whole(generation)
        asked = msgspec.structs.replace(generation, tokens=generation.tokens[:-begun])
        said = self._whole(asked)
        return None if said is None else Said(_behind(said.script, generation.tokens[-begun:]))

    def _whole(self, generation: Generation) -> Said | None:
        structured = generation.sampling.structured
        answer = choose(self._answers, self._end_of(generation.tokens)) if self._answers else None
        if structured is not None and (answer is None or structured.kind in {"choice", "json"}):
            return Said(Script([*self._codec.encode(formed(structured)), *self._end]))
        if answer is None:
            return None
        tokens = self._codec.encode(answer.text)
        if answer.fails_after_tokens is not None:
            return Said(Script(tokens[: answer.fails_after_tokens], ending="error"), answer.stall_s)
        return Said(Script([*tokens, *self._end]), answer.stall_s)

    def _end_of(self, prompt: bytes) -> str:
        return self._codec.decode(array("I", prompt[-SIM_ANSWER_PROMPT_TOKENS * BYTES_PER_TOKEN :]))


def _behind(script: Script, begun: bytes) -> Script:
    beginning = array("I", begun)
    count = len(beginning)
    if script.ending == "error" and array("I", script.tokens) == beginning:
        raise ReplicaDied("the engine breaks the generation where the last one did")
    if array("I", script.tokens[:count]) != beginning or count == len(script.tokens):
        raise InvalidRequest("the answer did not begin like this")
    return msgspec.structs.replace(script, tokens=script.tokens[count:])


def choose(answers: Sequence[Answer], prompt_end: str) -> Answer | None:
    """The answer whose `after` ends last in the text, the first of equals; None when the text holds none."""
    chosen, last = None, -1
    for answer in answers:
        at = prompt_end.rfind(answer.after)
        if at >= 0 and at + len(answer.after) > last:
            chosen, last = answer, at + len(answer.after)
    return chosen


def formed(structured: Structured) -> str:
    """A text that meets the constraint: the first choice, or the schema's smallest instance as compact JSON.

    Raises `InvalidRequest` for other kinds, for no list of choices, and for a schema that `smallest` cannot follow."""
    try:
        match structured.kind:
            case "choice":
                return msgspec.json.decode(structured.spec, type=_Choices)[0]
            case "json":
                return msgspec.json.encode(smallest(msgspec.json.decode(structured.spec))).decode()
            case other:
                raise InvalidRequest(f"the simulated engine cannot follow a {other}: ask for json or choice")
    except msgspec.MsgspecError as fault:
        raise InvalidRequest(f"{structured.kind} cannot be followed: {fault}") from fault
