"""Bodies of Responses for tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cluster.api.responses import parse_responses
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from cluster.prompt.conversation import Message

USER: Any = {"role": "user", "content": "Hi"}
READ: Any = {"type": "function", "name": "read", "description": "Reads.", "parameters": {"b": 1, "a": 2}}
PATCH: Any = {"type": "custom", "name": "patch", "description": "Edits."}
AGENTS: Any = {"type": "namespace", "name": "agents", "description": "All agents.", "tools": [READ]}
CALL: Any = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": '{"a": 1.0}'}
RESULT: Any = {"type": "function_call_output", "call_id": "c1", "output": "done"}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "Hi", **fields}).encode()


def turns(*items: Any) -> tuple[Message, ...]:
    return parse_responses(body(input=items)).messages


def blocks(*items: Any) -> Any:
    (turn,) = turns(*items)
    return turn.blocks


def complaint(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_responses(body(**fields))
    return str(caught.value)
