"""What every protocol checks of tools: how many, their names, and schemas, which stay text in the client's order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cluster.api.body import check_depth, decode
from router.errors import InvalidRequest
from router.limits import (
    MAX_HINT_CHARS,
    MAX_JSON_DEPTH,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_TOOL_NAME_CHARS,
    MAX_TOOLS,
)

if TYPE_CHECKING:
    from collections.abc import Collection

_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_NEEDLESS: Final = ("\\u", "\\/")  # what begins escapes that may have no need


def json_object(raw: msgspec.Raw, path: str, *, most_levels: int = MAX_JSON_DEPTH) -> str:
    """A JSON object as the client wrote it: keys in its order, numbers in its form, but characters as themselves.

    Raises `InvalidRequest` for anything else, for halves of surrogate pairs, and for deeper nesting.
    """
    check_depth(raw, path, most=most_levels)
    decode(raw, dict[str, Any], path)
    return _unescaped(bytes(raw).decode())


def _unescaped(text: str) -> str:
    """The same JSON, its strings with no more escapes than they need."""
    if not any(mark in text for mark in _NEEDLESS):
        return text
    return _STRING.sub(lambda found: msgspec.json.encode(msgspec.json.decode(found[0], type=str)).decode(), text)


def schema(raw: msgspec.Raw, path: str) -> str:
    """A JSON schema, bounded in size and depth. Raises `InvalidRequest`."""
    if memoryview(raw).nbytes > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"{path}: a schema has more than {MAX_SCHEMA_BYTES} bytes")
    return json_object(raw, path, most_levels=MAX_SCHEMA_DEPTH)


def check_count(tools: Collection[object], path: str) -> None:
    """Refuse more tools than one request may offer."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"{path}: more than {MAX_TOOLS} tools")


def check_name(name: str, path: str) -> str:
    """A tool's name, which is neither empty nor endless. Raises `InvalidRequest`."""
    if not name:
        raise InvalidRequest(f"{path}: a tool needs a name")
    if len(name) > MAX_TOOL_NAME_CHARS:
        raise InvalidRequest(f"{path}: `{name[:MAX_HINT_CHARS]}` has more than {MAX_TOOL_NAME_CHARS} characters")
    return name
