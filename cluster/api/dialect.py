"""What the ingress needs from a protocol: read a body, say an answer, say an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.output.assembly import Ending, Usage
    from cluster.prompt.conversation import Conversation


class AnswerId(NamedTuple):
    """What an answer is called: `suffix` is unique to the request, `created_s` is Unix time."""

    suffix: str
    created_s: int


class Reply(Protocol):
    """Says one answer. `whole` alone, or `start`, any number of `text` and `ping`, then `finish` or `error`."""

    def whole(self, text: str, ending: Ending, usage: Usage) -> dict[str, Any]: ...

    def start(self, usage: Usage) -> bytes: ...

    def text(self, text: str) -> bytes: ...

    def ping(self) -> bytes: ...

    def finish(self, ending: Ending, usage: Usage) -> bytes: ...

    def error(self, error: BaseException) -> bytes: ...


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
