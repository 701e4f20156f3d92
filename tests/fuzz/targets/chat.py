"""Bodies of `/v1/chat/completions`: a conversation, or a complaint that is the client's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.api.chat import parse_chat
from tests.fuzz import bodies
from tests.fuzz.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIELDS: Final[dict[str, Any]] = {
    "model": "m", "max_tokens": 5, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
}  # fmt: skip
EXTRAS: Final[dict[str, Any]] = {
    "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": -1, "seed": -5, "stop": ["a", "b" * 64],
    "stream": True, "stream_options": {"include_usage": True}, "prompt_cache_key": "k", "tools": [], "n": 1,
    "logit_bias": {}, "response_format": {"type": "text"}, "modalities": ["text"], "guided_json": {}, "x": [[[]]],
}  # fmt: skip


def run(data: bytes) -> None:
    bodies.check(parse_chat, bodies.body_of(Draw(data), FIELDS, extras=EXTRAS))


def seeds() -> Iterator[bytes]:
    yield from bodies.seeds(FIELDS, extras=EXTRAS)


def recorded(fixtures: Path) -> Iterator[bytes]:
    """The bodies that real clients sent: of the other protocol, but near enough."""
    yield from bodies.recorded(fixtures)
