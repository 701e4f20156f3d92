"""Bodies of `/v1/messages` and `count_tokens`: a conversation, or a complaint that is the client's."""

from __future__ import annotations

import json
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
TOOL: Final[dict[str, Any]] = {"name": "read", "description": "d", "input_schema": {"type": "object"}}
FORM: Final[dict[str, Any]] = {"type": "json_schema", "schema": {"type": "object", "title": "\u00e9"}}
EXTRAS: Final[dict[str, Any]] = {
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}], "temperature": 0.5,
    "top_p": 0.9, "top_k": 40, "stop_sequences": ["a", "", "b" * 64], "stream": True,
    "tools": [TOOL, {**TOOL, "name": "late", "defer_loading": True}, {"type": "web_search_1", "name": "web_search"}],
    "tool_choice": {"type": "tool", "name": "read", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1_024, "display": "omitted"},
    "output_config": {"format": FORM, "effort": "high"}, "output_format": FORM,
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": '{"session_id": "s"}'}, "mcp_servers": [], "container": None, "vllm_xargs": {"a": 1},
    "x": [[[]]],
}  # fmt: skip
IMAGE: Final[dict[str, Any]] = {
    "type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
}  # fmt: skip
BLOCKS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "text", "text": "hi"},
    IMAGE,
    {"type": "document", "source": {"type": "text", "data": "d"}, "title": "t", "context": "c"},
    {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "d"}, IMAGE]}},
    {"type": "document", "source": {"type": "url", "url": "u"}},
    {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "r"}]},
    {"type": "thinking", "thinking": "t", "signature": "s"},
    {"type": "redacted_thinking", "data": "x"},
    {"type": "tool_use", "id": "t", "name": "read", "input": {"b": 1.0, "a": "\u00e9"}},
    {"type": "tool_result", "tool_use_id": "toolu_x_Zi5yOjA", "content": "r", "is_error": True},
    {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE, {"type": "tool_reference", "tool_name": "late"}]},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "browser_state", "tabs": [{"tab_id": "1"}]}]},
    {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}},
    {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {**TOOL, "name": "new"}}},
    {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "read"}},
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
    {"type": "compaction", "content": "c"},
)

ROLES: Final = {
    "user": ("text", "image", "document", "search_result", "tool_result", "compaction"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result"),
    "system": ("text", "tool_addition", "tool_removal"),
}


def run(data: bytes) -> None:
    body = bodies.body_of(Draw(data), FIELDS, extras=EXTRAS, blocks=BLOCKS)
    bodies.check(parse_message, body)
    bodies.check(parse_count, body)


def seeds() -> Iterator[bytes]:
    yield from bodies.seeds(FIELDS, extras=EXTRAS)
    ask = {"role": "user", "content": [BLOCKS[0]]}
    for role, types in ROLES.items():
        said = {"role": role, "content": [block for block in BLOCKS if block["type"] in types]}
        yield bodies.RAW + json.dumps({**FIELDS, "messages": [said, ask]}).encode()


def recorded(fixtures: Path) -> Iterator[bytes]:
    """The bodies that real clients sent."""
    yield from bodies.recorded(fixtures)
