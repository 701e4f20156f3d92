"""A prompt as bytes on the wire, in either API, as coding agents send it."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from load_tests.bench.ingress_bodies import CACHED, Json, marked, text_block

if TYPE_CHECKING:
    from collections.abc import Mapping

    from load_tests.client import Api
    from load_tests.swarm.dialogue import Prompt

PATHS: Final[Mapping[Api, str]] = MappingProxyType({"messages": "/v1/messages", "chat": "/v1/chat/completions"})


class Caller(NamedTuple):
    """Who asks: ids in the form in which clients tell them. Sub-agents have an id of their own and their session's."""

    session_id: str
    agent_id: str = ""

    def headers(self, api: Api) -> dict[str, str]:
        """Hints that a router may use to keep a session together."""
        if api == "chat":
            return {"x-session-id": self.session_id}
        fields = {"x-claude-code-session-id": self.session_id}
        return fields | ({"x-claude-code-agent-id": self.agent_id} if self.agent_id else {})


def encode(prompt: Prompt, *, api: Api, model: str, max_tokens: int, attribution: str | None, caller: Caller) -> bytes:
    """The body of one streamed request. `attribution` is the line before the system text, None for none."""
    body: Json = {"model": model, "max_tokens": max_tokens, "stream": True}
    if api == "messages":
        user_id = json.dumps({"device_id": "0" * 64, "account_uuid": "", "session_id": caller.session_id})
        body |= _messages(prompt, attribution) | {"metadata": {"user_id": user_id}}
    else:
        body |= _chat(prompt, attribution) | {"stream_options": {"include_usage": True}}
    return msgspec.json.encode(body)


def _messages(prompt: Prompt, attribution: str | None) -> Json:
    system = [text_block(attribution)] if attribution else []
    fields: Json = {}
    if prompt.head is not None:
        system.append(text_block(prompt.head.system) | {"cache_control": CACHED})
        fields = {"tools": prompt.head.tools} if prompt.head.tools else {}
    *before, last = prompt.messages
    return fields | ({"system": system} if system else {}) | {"messages": [*before, marked(last)]}


def _chat(prompt: Prompt, attribution: str | None) -> Json:
    lines = [attribution] if attribution else []
    fields: Json = {}
    if prompt.head is not None:
        lines.append(prompt.head.system)
        fields = {"tools": [_function(tool) for tool in prompt.head.tools]} if prompt.head.tools else {}
    system = [{"role": "system", "content": "\n".join(lines)}] if lines else []
    return fields | {"messages": [*system, *(one for message in prompt.messages for one in _chat_messages(message))]}


def _function(tool: Json) -> Json:
    described = {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}
    return {"type": "function", "function": described}


def _chat_messages(message: Json) -> list[Json]:
    """Results of tools are messages of their own; thinking is not sent back."""
    results = [block for block in message["content"] if block["type"] == "tool_result"]
    made = [{"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]} for block in results]
    rest = [block for block in message["content"] if block["type"] in ("text", "tool_use")]
    return [*made, _chat_message(message["role"], rest)] if rest or not made else made


def _chat_message(role: str, blocks: list[Json]) -> Json:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [_call(block) for block in blocks if block["type"] == "tool_use"]
    return {"role": role, "content": text} | ({"tool_calls": calls} if calls else {})


def _call(block: Json) -> Any:
    arguments = json.dumps(block["input"], ensure_ascii=False)
    return {"type": "function", "id": block["id"], "function": {"name": block["name"], "arguments": arguments}}
