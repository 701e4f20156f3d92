"""Marks in the place of a turn's words: rendered by the model's own template, they show where the turn stands."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cluster.prompt.template import Ask, ChatTemplate, Turn


class Span(NamedTuple):
    """From a turn's first mark to its last one. `kinds` are the marks in order: r for reasoning, c for content, a for
    the arguments of the last call. `limit` is where the next turn's marks begin."""

    kinds: str
    start: int
    end: int
    limit: int


class Marks:
    """`salt` is letters and digits that no client can guess: so nobody else can write a mark."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._mark = re.compile(f"{salt}([rca])([0-9]+)e")

    def on(self, turn: Turn, index: int, *, reasoning: bool) -> Turn:
        """An assistant's turn with marks for words, as many as it has: without text beside calls there is no mark for
        it. `reasoning` says whether one for reasoning is wanted, whatever the turn has itself."""
        calls = turn.calls
        if calls:
            calls = (*calls[:-1], replace(calls[-1], arguments=f'{{"a": "{self._salt}a{index}e"}}'))
        return turn._replace(
            content=f"{self._salt}c{index}e" if turn.content.strip() or not calls else "",
            reasoning=f"{self._salt}r{index}e" if reasoning else "",
            calls=calls,
        )

    def spans(self, text: str) -> dict[int, Span]:
        """By index of the turn, in order; none at all when a turn's marks stand apart. O(text)."""
        groups = [list(group) for _, group in groupby(self._mark.finditer(text), lambda mark: mark[2])]
        limits = [group[0].start() for group in groups[1:]] + [len(text)]
        spans = {
            int(group[0][2]): Span("".join(mark[1] for mark in group), group[0].start(), group[-1].end(), limit)
            for group, limit in zip(groups, limits, strict=True)
        }
        return spans if len(spans) == len(groups) else {}


class MarkingTemplate:
    """A `ChatTemplate` that renders marks in the place of some turns' words: `wanted` says by index which, and whether
    with reasoning. `marked` are those turns."""

    def __init__(self, template: ChatTemplate, marks: Marks, wanted: Mapping[int, bool]) -> None:
        self._template = template
        self._marks = marks
        self._wanted = wanted
        self.marked: dict[int, Turn] = {}

    def render(self, turns: Sequence[Turn], ask: Ask) -> str:
        """See `ChatTemplate`."""
        self.marked = {
            index: self._marks.on(turns[index], index, reasoning=reasoning)
            for index, reasoning in self._wanted.items()
            if index < len(turns) and turns[index].role == "assistant"
        }
        return self._template.render([self.marked.get(i, turn) for i, turn in enumerate(turns)], ask)
