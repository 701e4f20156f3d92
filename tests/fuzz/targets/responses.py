"""Bodies of `/v1/responses`: a conversation, or a complaint that is the client's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cluster.api.responses import parse_responses
from tests.fuzz import bodies
from tests.fuzz.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIELDS: Final[dict[str, Any]] = {"model": "m", "max_output_tokens": 5, "input": "hi"}
TOOL: Final[dict[str, Any]] = {"type": "function", "name": "read", "parameters": {"title": "\u00e9"}}
EXTRAS: Final[dict[str, Any]] = {
    "instructions": "i", "temperature": 0.5, "top_p": 0.9, "top_logprobs": 3, "stream": True, "store": False,
    "tools": [
        TOOL,
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "g"}},
        {"type": "namespace", "name": "agents", "description": "d", "tools": [TOOL]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": {"type": "function", "name": "read"}, "parallel_tool_calls": False,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
    "reasoning": {"effort": "high", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
    "previous_response_id": "resp_1", "prompt_cache_key": "k", "metadata": {"a": "b"}, "truncation": "auto",
    "background": False, "conversation": None, "vllm_xargs": {"a": 1}, "x": [[[]]],
}  # fmt: skip
IMAGE: Final[dict[str, Any]] = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
ITEMS: Final[tuple[dict[str, Any], ...]] = (
    {"role": "user", "content": "hi"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}, IMAGE]},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "r"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "kvist1:aGk="},
    {"type": "function_call", "call_id": "c", "name": "read", "namespace": "agents", "arguments": '{"a": 1.0}'},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "r"}, IMAGE]},
    {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "\u00e9"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": "r"},
    {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "local_shell_call_output", "id": "c", "output": "r"},
    {"type": "web_search_call", "id": "w", "action": {"type": "search"}},
    {"type": "item_reference", "id": "msg_1"},
)


def run(data: bytes) -> None:
    bodies.check(parse_responses, _body(Draw(data)))


def seeds() -> Iterator[bytes]:
    yield bodies.RAW + json.dumps(FIELDS | EXTRAS).encode()
    readable = [item for item in ITEMS if item.get("type") != "item_reference"]
    quiet = {name: value for name, value in EXTRAS.items() if name != "vllm_xargs"}
    yield bodies.RAW + json.dumps(FIELDS | quiet | {"input": readable}).encode()
    yield bodies.RAW + b'{"input":' + b"[" * 100 + b"]" * 100 + b"}"
    for step in (3, 5, 7):
        yield bodies.BUILT + bytes(at * step % 256 for at in range(60))


def recorded(fixtures: Path) -> Iterator[bytes]:
    """The bodies that real clients sent: of another protocol, but near enough."""
    yield from bodies.recorded(fixtures)


def _body(draw: Draw) -> bytes:
    if not draw.below(2):
        return draw.rest()
    chosen = {name: EXTRAS[name] for name in draw.sequence(4, lambda: draw.one_of(sorted(EXTRAS)))}
    items = draw.sequence(6, lambda: draw.damaged(draw.one_of(ITEMS)))
    return msgspec.json.encode(draw.damaged(FIELDS | chosen | ({"input": items} if items else {})))
