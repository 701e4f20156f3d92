"""Newlines that templates put between blocks are not the model's words: they are taken away here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cluster.output.events import TextDelta, ThinkingDelta

if TYPE_CHECKING:
    from cluster.output.events import Event


class Framing:
    """Turns words into deltas without the newlines around reasoning and behind calls.

    Reasoning loses newlines at both ends. Text loses those that part it from reasoning or a call before it; text of
    white space alone, between other blocks, is none. What is held back leaves with what follows it.
    """

    def __init__(self) -> None:
        self._last: Literal["start", "text", "thinking", "boundary"] = "start"
        self._held = ""
        self._has_thought = False  # in this block

    @property
    def is_thinking(self) -> bool:
        """Whether the last words were reasoning."""
        return self._last == "thinking"

    def think(self, text: str) -> list[Event]:
        """More reasoning."""
        if not self.is_thinking:
            self._last, self._held, self._has_thought = "thinking", "", False
        words = self._held + text
        if not self._has_thought:
            words = words.lstrip("\n")
        body = words.rstrip("\n")
        self._held = words[len(body) :]
        self._has_thought |= bool(body)
        return [ThinkingDelta(body)] if body else []

    def say(self, text: str) -> list[Event]:
        """More text."""
        if self._last == "text":
            return [TextDelta(text)] if text else []
        if self.is_thinking:
            self.end_block()
        words = self._held + text
        if not words.strip():
            self._held = words
            return []
        at_start = self._last == "start"
        self._last, self._held = "text", ""
        return [TextDelta(words if at_start else words.lstrip("\n"))]

    def quote(self, source: str) -> list[Event]:
        """Text as it stands, such as a call that is none."""
        words = (self._held if self._last == "start" else "") + source
        if not words:
            return []
        self._last, self._held = "text", ""
        return [TextDelta(words)]

    def end_block(self) -> None:
        """What follows is a new block: a call has been said, or reasoning has ended."""
        self._last, self._held = "boundary", ""

    def finish(self) -> list[Event]:
        """An answer of nothing but white space is that."""
        held, self._held = self._held, ""
        return [TextDelta(held)] if held and self._last == "start" else []
