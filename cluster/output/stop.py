"""Stop strings, found in the text however tokens cut it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Scan(NamedTuple):
    """Text that may leave, and the stop string found behind it; text from the match on is never sent."""

    text: str
    stop: str | None


class StopScanner:
    """Finds the stop string that is complete first; of several that end together the longest.

    Holds back only text that could still become a stop string. After a match it must not be pushed to.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._beginnings = frozenset(stop[:n] for stop in stops for n in range(1, len(stop)))
        self._longest = max(map(len, self._beginnings), default=0)
        self._held = ""

    def push(self, text: str) -> Scan:
        """One search per stop string, then one look-up per length of what to hold back."""
        if not self._stops:
            return Scan(text, None)
        seen = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := seen.find(stop)) >= 0]
        if found:
            _, at, stop = min(found)
            self._held = ""
            return Scan(seen[:at], stop)
        keep = self._could_become_stop(seen)
        self._held = seen[len(seen) - keep :]
        return Scan(seen[: len(seen) - keep], None)

    def finish(self) -> str:
        """The text held back for a stop string that never came."""
        held, self._held = self._held, ""
        return held

    def _could_become_stop(self, seen: str) -> int:
        """Length of the longest end of `seen` that a stop string begins with."""
        beginnings, end = self._beginnings, seen[-self._longest :] if self._longest else ""
        return next((len(end) - i for i in range(len(end)) if end[i:] in beginnings), 0)
