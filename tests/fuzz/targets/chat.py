"""Bodies of `/v1/chat/completions`: a conversation, or a complaint that is the client's."""

from __future__ import annotations

import json
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
FUNCTION: Final[dict[str, Any]] = {"name": "read", "description": "d", "parameters": {"type": "object"}}
CALL: Final[dict[str, Any]] = {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"a": 1.0}'}}
EXTRAS: Final[dict[str, Any]] = {
    "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": -1, "seed": -5, "stop": ["a", "b" * 64],
    "stream": True, "stream_options": {"include_usage": True}, "prompt_cache_key": "k", "n": 2, "min_p": 0.1,
    "tools": [{"type": "function", "function": FUNCTION}, {"type": "web_search"}],
    "tool_choice": {"type": "function", "function": {"name": "read"}}, "parallel_tool_calls": False,
    "functions": [FUNCTION], "function_call": {"name": "read"}, "logprobs": True, "top_logprobs": 20,
    "logit_bias": {"7": -100, "0": 0.5}, "reasoning_effort": "none", "modalities": ["text"], "guided_json": {},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "x": [[[]]],
}  # fmt: skip
PARTS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "text", "text": "hi"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
    {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk="}},
    {"type": "refusal", "refusal": "no"},
)
TURNS: Final[tuple[dict[str, Any], ...]] = (
    {"role": "user", "content": [*PARTS[:4]], "name": "n"},
    {"role": "assistant", "content": None, "reasoning_content": "t", "tool_calls": [CALL]},
    {"role": "assistant", "content": [PARTS[0], PARTS[4]], "reasoning": "t", "refusal": "no"},
    {"role": "tool", "tool_call_id": "c", "content": [PARTS[0], PARTS[1]]},
    {"role": "assistant", "content": "", "function_call": {"name": "read", "arguments": "{broken"}},
    {"role": "function", "name": "read", "content": "r"},
    {"role": "developer", "content": [PARTS[0]]},
)


def run(data: bytes) -> None:
    bodies.check(parse_chat, bodies.body_of(Draw(data), FIELDS, extras=EXTRAS, blocks=PARTS, turns=TURNS))


def seeds() -> Iterator[bytes]:
    yield from bodies.seeds(FIELDS, extras=EXTRAS)
    yield bodies.RAW + json.dumps({**FIELDS, "messages": TURNS}).encode()


def recorded(fixtures: Path) -> Iterator[bytes]:
    """The bodies that real clients sent: of the other protocol, but near enough."""
    yield from bodies.recorded(fixtures)
