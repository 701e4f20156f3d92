"""Rule 1: lines that change while the instructions do not.

Coding agents put an attribution line (`x-anthropic-billing-header: cc_version=...`) into the system text. It differs
per version, per first prompt and in older clients per request, and it stands at token 0: every block after it would be
cold. The line goes, whatever its fields; all other text stays. Callers pass system text only, never a user's words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import re2

from router.errors import ModelUnusable

if TYPE_CHECKING:
    from collections.abc import Sequence

ATTRIBUTION_LINE = r"(?im)(?:^[ \t]*x-anthropic-billing-header:[^\n]*(?:\r?\n)?)+"


class Stripped(NamedTuple):
    """The text without its volatile lines, and those lines in their order."""

    text: str
    removed: str


class LinePattern:
    """Removes the lines that one pattern matches, runs of them at once. RE2: linear, whatever an operator writes."""

    def __init__(self, pattern: str) -> None:
        self._regex = re2.compile(pattern)

    @classmethod
    def for_lines(cls, pattern: str) -> LinePattern:
        """An operator's RE2 pattern, matched from the start of a line; the whole line goes.

        Raises `ModelUnusable` for one that RE2 refuses or that would match every line.
        """
        try:
            if re2.compile(pattern).match(""):
                raise ModelUnusable(f"volatile_lines: {pattern!r} matches every line")
            return cls(f"(?m)(?:^(?:{pattern})[^\\n]*(?:\\r?\\n)?)+")
        except re2.error as error:
            raise ModelUnusable(f"volatile_lines: {pattern!r} is not an RE2 pattern") from error

    def strip(self, text: str) -> Stripped:
        """Linear in the text. Idempotent: whole lines go, so what is left starts its lines as before."""
        data = text.encode()  # offsets of bytes are what RE2 counts in: those of characters cost as much again
        kept: list[bytes] = []
        removed: list[bytes] = []
        at = 0
        for match in self._regex.finditer(data):
            start, end = match.span()
            kept.append(data[at:start])
            removed.append(data[start:end])
            at = end
        if not removed:
            return Stripped(text, "")
        return Stripped(b"".join([*kept, data[at:]]).decode(), b"".join(removed).decode())


def compile_lines(patterns: Sequence[str]) -> tuple[LinePattern, ...]:
    """The operators' own patterns, in their order."""
    return tuple(LinePattern.for_lines(pattern) for pattern in patterns)
