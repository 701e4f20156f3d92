"""Bodies of `/v1/messages` and `count_tokens`: a conversation, or a complaint that is the client's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.api.messages import parse_count, parse_message
from tests.fuzz import bodies
from tests.fuzz.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIELDS: Final[dict[str, Any]] = {
    "model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}],
}  # fmt: skip
EXTRAS: Final[dict[str, Any]] = {
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}], "temperature": 0.5,
    "top_p": 0.9, "top_k": 40, "stop_sequences": ["a", "", "b" * 64], "stream": True, "tools": [],
    "tool_choice": {"type": "auto"}, "thinking": {"type": "disabled"}, "output_config": {"format": None},
    "metadata": {"user_id": '{"session_id": "s"}'}, "mcp_servers": [], "container": None, "vllm_xargs": {"a": 1},
    "x": [[[]]],
}  # fmt: skip


def run(data: bytes) -> None:
    body = bodies.body_of(Draw(data), FIELDS, extras=EXTRAS)
    bodies.check(parse_message, body)
    bodies.check(parse_count, body)


def seeds() -> Iterator[bytes]:
    yield from bodies.seeds(FIELDS, extras=EXTRAS)


def recorded(fixtures: Path) -> Iterator[bytes]:
    """The bodies that real clients sent."""
    yield from bodies.recorded(fixtures)
