"""What headers and bodies say of a session and its client: for routing and logs, never trusted nor in the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.limits import MAX_HINT_CHARS, MAX_IGNORED_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.prompt.conversation import Conversation

# Coding agents send one of these with every request of a session.
SESSION_HEADERS: Final = (
    "x-claude-code-session-id", "x-session-id", "x-session-affinity", "session-id", "thread-id",
)  # fmt: skip


# How vendors' clients ask for what is not in the protocol yet.
BETA_HEADERS: Final = ("anthropic-beta", "openai-beta")


def betas_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Names of betas that a client asks for. None is followed: what Kvist knows of them it does without being asked."""
    given = ",".join(filter(None, map(headers.get, BETA_HEADERS)))[: MAX_IGNORED_FIELDS * MAX_HINT_CHARS]
    names = (name.strip()[:MAX_HINT_CHARS] for name in given.split(","))
    return tuple(dict.fromkeys(filter(None, names)))[:MAX_IGNORED_FIELDS]


def session_of(headers: Mapping[str, str], conversation: Conversation) -> str:
    """The session's id, "" when nobody says one. Headers (lower-case names) go before the body."""
    found = next((value for name in SESSION_HEADERS if (value := headers.get(name))), "")
    return found[:MAX_HINT_CHARS] or conversation.hints.session
