"""JSON text that a client sent, as values and as text again: one way for arguments and schemas, on every path.

Keys keep the client's order, text stays text (`é`, not `\\u00e9`): what is rendered then is what a model writes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from cluster.prompt.conversation import Tool


def object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is; blank text is an empty one. None for anything else (broken, too deep, a list)."""
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def arguments_text(arguments: str) -> str:
    """A call's arguments as a template reads them as text; what is no JSON object stays as it is."""
    value = object_of(arguments)
    return arguments if value is None else dumps(value)


def function_of(tool: Tool) -> dict[str, Any]:
    """A tool as chat templates know it. A schema that is no JSON object allows anything."""
    parameters = object_of(tool.parameters)
    return {"name": tool.name, "description": tool.description, "parameters": {} if parameters is None else parameters}


def dumps(value: Any) -> str:
    """As chat templates write it (`tojson`)."""
    return json.dumps(value, ensure_ascii=False)
