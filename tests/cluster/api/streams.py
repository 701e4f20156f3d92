"""Well-formed answers for tests of replies: any events, cut into pieces as they might come."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hypothesis import strategies as st

from cluster.api.dialect import Answer
from cluster.output.assembly import Ending, Piece, ScoredToken
from cluster.output.events import (
    CallArguments,
    CallBroken,
    CallEnd,
    CallStart,
    Event,
    TextDelta,
    ThinkingDelta,
    blocks_of,
)

REASONS: Any = ["end", "length", "context_window"]
words = st.text('ab \n"\\é風{', min_size=1, max_size=6)


class Told(NamedTuple):
    """One choice, in pieces and whole. `void` are the positions of calls that broke, among all that were started."""

    pieces: list[Piece]
    answer: Answer
    void: frozenset[int]


@st.composite
def told(draw: st.DrawFn) -> Told:
    """An answer of any blocks in any order, cut anywhere, each piece with the scores of some tokens."""
    events: list[Event] = []
    void: set[int] = set()
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "thinking", "call", "broken"]), max_size=6)):
        if kind in {"text", "thinking"}:
            delta = TextDelta if kind == "text" else ThinkingDelta
            events += map(delta, draw(st.lists(words, min_size=1, max_size=3)))
            continue
        arguments = json.dumps({"a": draw(words)})
        cut = draw(st.integers(0, len(arguments)))
        events += [CallStart(f"call_{calls}", "read"), *map(CallArguments, filter(None, [arguments[:cut]]))]
        if kind == "broken":
            void.add(calls)
            events += [CallBroken(), TextDelta(arguments[:cut] + "!")]
        else:
            events += [*map(CallArguments, filter(None, [arguments[cut:]])), CallEnd()]
        calls += 1
    ending = draw(st.sampled_from([*map(Ending, REASONS), Ending("stop_sequence", "x"), Ending("tool_use")]))
    return _cut(draw, events, ending, frozenset(void))


def _cut(draw: st.DrawFn, events: list[Event], ending: Ending, void: frozenset[int]) -> Told:
    scores: list[ScoredToken] = []
    pieces: list[Piece] = []
    at = 0
    while at < len(events) or not pieces:
        size = draw(st.integers(0, 4))
        new = tuple(draw(st.lists(scored, max_size=2)))
        scores += new
        pieces.append(Piece(tuple(events[at : at + size]), None, new))
        at += size
    pieces[-1] = pieces[-1]._replace(ending=ending)
    return Told(pieces, Answer(blocks_of(events), ending, tuple(scores)), void)


piece_bytes = st.sampled_from([b"a", b" b", "é".encode(), "é".encode()[:1], "é".encode()[1:], b""])
logprobs = st.sampled_from([-0.5, -7.0, float("-inf")])
scored = st.builds(
    ScoredToken,
    piece_bytes,
    logprobs,
    st.lists(st.tuples(piece_bytes, logprobs), max_size=3).map(tuple),
)


def data_of(stream: bytes) -> list[dict[str, Any]]:
    """The JSON of every event, in order."""
    lines = [line for line in stream.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]
