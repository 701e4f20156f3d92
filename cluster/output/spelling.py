"""Marks are marks however a model spells them: as the one token they are, or in letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Heard(NamedTuple):
    """A piece of text and the tokens that stand for it, as far as they matter: those of marks."""

    text: str
    tokens: list[int]


class Spelling:
    """Finds marks in the text of tokens and names the token that each of them is. `marks` are texts with their tokens.

    Holds back only text that could still become a mark.
    """

    def __init__(self, marks: Mapping[str, int]) -> None:
        self._marks = dict(marks)
        self._tokens = frozenset(marks.values())
        self._beginnings = frozenset(mark[:n] for mark in marks for n in range(1, len(mark)))
        self._longest = max(map(len, self._beginnings), default=0)
        self._firsts = frozenset(mark[0] for mark in marks)
        self._held = ""

    @property
    def holds(self) -> bool:
        """Whether text is held back."""
        return bool(self._held)

    def push(self, text: str, token: int) -> list[Heard]:
        """One token and its text. O(marks) where a mark's first character is in it, else O(text)."""
        if token in self._tokens:
            return [*self.finish(), Heard(text, [token])]
        if not self._held and not any(first in text for first in self._firsts):
            return [Heard(text, [token])] if text else []
        heard: list[Heard] = []
        seen = self._held + text
        while found := [(at, mark) for mark in self._marks if (at := seen.find(mark)) >= 0]:
            at, mark = min(found)
            heard += [Heard(seen[:at], []), Heard(mark, [self._marks[mark]])]
            seen = seen[at + len(mark) :]
        keep = self._could_become_mark(seen)
        self._held = seen[len(seen) - keep :]
        heard.append(Heard(seen[: len(seen) - keep], []))
        return [piece for piece in heard if piece.text]

    def finish(self) -> list[Heard]:
        """What was held back for a mark that never came."""
        held, self._held = self._held, ""
        return [Heard(held, [])] if held else []

    def _could_become_mark(self, seen: str) -> int:
        end = seen[-self._longest :] if self._longest else ""
        return next((len(end) - i for i in range(len(end)) if end[i:] in self._beginnings), 0)
