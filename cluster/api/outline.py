"""A request seen from far: what its prompt depends on, undecoded, so that a conversation that grew is known again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable

    from cluster.prompt.conversation import Conversation, Text


class Outline(NamedTuple):
    """`parts` and `system` are all that a prompt depends on but its messages, `raws` those, as bytes.

    Two requests with equal outlines have equal prompts, whatever else they hold.
    """

    model: str
    system: tuple[Text, ...]
    parts: tuple[Hashable, ...]
    raws: list[bytes]
    tail: Tail


class Tail(Protocol):
    """Reads the rest of a request."""

    def __call__(self, shell: Conversation, first: int) -> Conversation:
        """The request with its messages from number `first` on, in a conversation like `shell`, which an earlier
        request of the same outline but for its messages has become. Raises `InvalidRequest`."""
        ...
