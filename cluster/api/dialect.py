"""What the ingress needs from a protocol: read a body, say an answer, say an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.api.outline import Outline
    from cluster.output.assembly import Ending, Piece, ScoredToken, Usage
    from cluster.output.events import Said
    from cluster.prompt.conversation import Conversation


class AnswerId(NamedTuple):
    """What an answer is called: `suffix` is unique to the request, `created_s` is Unix time."""

    suffix: str
    created_s: int


class Answer(NamedTuple):
    """One whole choice: its blocks in order, how it ended, and its tokens' scores if they were asked for."""

    blocks: tuple[Said, ...]
    ending: Ending
    scores: tuple[ScoredToken, ...] = ()


class Reply(Protocol):
    """Says the answer to one request. `whole` alone; or `start`, any number of `say` and `ping`, then `finish` or
    `error`."""

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The body of a non-streaming answer, one entry per choice."""
        ...

    def start(self, usage: Usage) -> bytes:
        """The first events."""
        ...

    def say(self, piece: Piece, choice: int) -> bytes:
        """What is new of one choice; with its ending, the end of that choice. Maybe nothing."""
        ...

    def ping(self) -> bytes:
        """Something that tells clients and proxies that the stream lives."""
        ...

    def finish(self, usage: Usage) -> bytes:
        """The last events, when every choice has ended."""
        ...

    def error(self, error: BaseException) -> bytes:
        """The last events of a stream that failed after its start."""
        ...


class ErrorBody(NamedTuple):
    """An error before anything was sent."""

    status: int
    headers: dict[str, str]
    body: dict[str, Any]


class Dialect(NamedTuple):
    """One protocol."""

    api: str
    parse: Callable[[bytes], Conversation]
    reply: Callable[[Conversation, AnswerId], Reply]
    error: Callable[[BaseException, str], ErrorBody]
    outline: Callable[[bytes], Outline] | None = None  # None where every request is read as a whole
