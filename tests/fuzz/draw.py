"""Reads decisions out of bytes, so that a fuzzer that only knows bytes can build structured input.

Every byte string means something: when the bytes are spent, every further decision is the first option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Option = TypeVar("Option")

EDGES: Final = (0, 1, -1, 7, 255, 65_536, 2**31, 2**32 - 1, 2**53, 2**53 + 1, 2**63, 2**64 - 1, -(2**63))
TEXTS: Final = ("", "a", "gpu", "user", "text", "é" * 40, "x" * 300, "\x00", "stored", "BlockRemoved")
SCALARS: Final = (None, True, False, 0.5, -0.0, 1e308, float("nan"), float("inf"))
MAX_DEPTH: Final = 4


class Draw:
    """Decisions from `data`, in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_spent(self) -> bool:
        return self._at >= len(self._data)

    def below(self, bound: int) -> int:
        """A number in [0, bound), from one byte."""
        at, self._at = self._at, self._at + 1
        return self._data[at] % bound if at < len(self._data) else 0

    def one_of(self, options: Sequence[Option]) -> Option:
        return options[self.below(len(options))]

    def one_in(self, odds: int) -> bool:
        """True for one of `odds` byte values; never when the bytes are spent."""
        return self.below(odds) == odds - 1

    def take(self, count: int) -> bytes:
        """The next bytes, fewer at the end."""
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def sequence(self, most: int, item: Callable[[], Option]) -> list[Option]:
        return [item() for _ in range(self.below(most + 1))]

    def value(self, depth: int = 0) -> Any:
        """Anything a message may hold where something else was expected."""
        kind = self.below(6 if depth < MAX_DEPTH else 4)
        if kind == 0:
            return self.one_of(EDGES)
        if kind == 1:
            return self.one_of(TEXTS)
        if kind == 2:
            return self.one_of(SCALARS)
        if kind == 3:
            return self.take(self.below(18))
        if kind == 4:
            return self.sequence(4, lambda: self.value(depth + 1))
        return {self.one_of(TEXTS): self.value(depth + 1) for _ in range(self.below(4))}

    def damaged(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with up to three fields replaced, missing or added; mostly none."""
        found = dict(message)
        for _ in range(max(self.below(8) - 4, 0)):
            name = self.one_of(sorted(message))
            match self.below(6):
                case 0:
                    found.pop(name, None)
                case 1:
                    found[self.one_of(TEXTS)] = self.value()
                case _:
                    found[name] = self.value()
        return found
