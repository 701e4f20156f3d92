"""What headers and bodies say of the session: hints for routing and logs, never trusted and never in the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.limits import MAX_HINT_CHARS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.prompt.conversation import Conversation

# Coding agents send one of these with every request of a session.
SESSION_HEADERS: Final = (
    "x-claude-code-session-id", "x-session-id", "x-session-affinity", "session-id", "thread-id",
)  # fmt: skip


def session_of(headers: Mapping[str, str], conversation: Conversation) -> str:
    """The session's id, "" when nobody says one. Headers (lower-case names) go before the body."""
    found = next((value for name in SESSION_HEADERS if (value := headers.get(name))), "")
    return found[:MAX_HINT_CHARS] or conversation.hints.session
