"""What turns a generation's text into events: the seam for a model family's parser, and the one for plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cluster.output.events import TextDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.output.events import Event


class OutputParser(Protocol):
    """Reads one generation, token by token, into well-formed events (see `cluster.output.events`).

    What it has been given comes out again as some event, at the latest from `finish`; it never raises for what a model
    says. Events depend on the tokens alone, not on how they were grouped on their way.
    """

    def push(self, text: str, token: int) -> Sequence[Event]:
        """One token and the text that became certain with it (maybe none)."""
        ...

    def finish(self, text: str) -> Sequence[Event]:
        """The generation has ended; `text` is what was left of a character."""
        ...

    def passes(self, data: bytes, tokens: bytes) -> bool:
        """Whether these tokens (packed u32), which stand for `data`, would only be passed on as more of what was said
        last. They may then be pushed later, and as one: with all their text and the last of them."""
        ...

    @property
    def is_thinking(self) -> bool:
        """Whether the last token belonged to reasoning."""
        ...


class PlainParser:
    """All is text."""

    is_thinking = False

    def push(self, text: str, token: int) -> Sequence[Event]:  # noqa: ARG002 - the text says it all
        """See `OutputParser`."""
        return (TextDelta(text),) if text else ()

    def finish(self, text: str) -> Sequence[Event]:
        """See `OutputParser`."""
        return (TextDelta(text),) if text else ()

    def passes(self, data: bytes, tokens: bytes) -> bool:  # noqa: ARG002 - whatever they are
        """See `OutputParser`."""
        return True
