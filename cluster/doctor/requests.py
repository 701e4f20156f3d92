"""Which captured requests belong together: turns of one conversation, and conversations of several sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cluster.api.hints import session_of
from cluster.doctor.parting import common_prefix
from cluster.explain import PARSERS
from cluster.prompt.conversation import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cluster.captures import Captured
    from cluster.prompt.conversation import Conversation

COUNTING: Final = "/count_tokens"


class Request(NamedTuple):
    """A captured request that was read. `thread` is equal for the turns of one conversation of a session."""

    where: str
    session: str
    thread: tuple[str, ...]
    conversation: Conversation


class Pair(NamedTuple):
    """Two requests of which the later could have used the earlier one's prompt."""

    kind: Literal["turn", "session"]
    earlier: Request
    later: Request


def read_request(captured: Captured) -> Request:
    """Parse it and find out where it belongs. Raises `ClientError`.

    A session is what the client says it is, else the file. Title calls, sub-agents and token counts open with other
    words, so they are threads of their own.
    """
    conversation = PARSERS[captured.api](captured.body)
    file = captured.where.rpartition("#")[0] or captured.where.rpartition(":")[0] or captured.where
    session = session_of(captured.headers, conversation) or file
    counting = COUNTING if COUNTING in captured.path else ""
    return Request(captured.where, session, (session, captured.api, counting, _opening(conversation)), conversation)


def pairs_of(requests: Iterable[Request]) -> Iterator[Pair]:
    """Every request with the one before it in its thread; a thread's first with that first one of another session whose
    system text is most alike, among those of the same kind."""
    last: dict[tuple[str, ...], Request] = {}
    firsts: list[Request] = []
    for request in requests:
        if request.thread in last:
            yield Pair("turn", last[request.thread], request)
        else:
            others = [first for first in firsts if _alike(first, request)]
            if others:
                yield Pair("session", max(others, key=lambda first: _likeness(first, request)), request)
            firsts.append(request)
        last[request.thread] = request


def _alike(first: Request, request: Request) -> bool:
    """Of another session, the same protocol and purpose, and with as many tools: the same kind of agent."""
    if first.session == request.session or first.thread[1:3] != request.thread[1:3]:
        return False
    return bool(first.conversation.tools) == bool(request.conversation.tools)


def _likeness(first: Request, request: Request) -> int:
    systems = zip(first.conversation.system, request.conversation.system, strict=False)
    return sum(common_prefix(old.text, new.text) for old, new in systems)


def _opening(conversation: Conversation) -> str:
    """The first words of the user: the last block of the first user message, after what the client put before it."""
    if conversation.prompts:
        return ""
    first = next((message for message in conversation.messages if message.role == "user"), None)
    texts = [block.text for block in first.blocks if isinstance(block, Text)] if first else []
    return texts[-1] if texts else ""
