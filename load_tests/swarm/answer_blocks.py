"""What an answer holds, block by block, as a client sends it back: text, thinking with its signature, tool calls."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from load_tests.bench.ingress_bodies import Json
    from load_tests.client import Api

NO_ANSWER: Final = "(no answer)"
"""Stands where an assistant's turn must be and nothing came."""
TEXTS: Final = MappingProxyType({"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"})


class AnswerBlocks:
    """Events of a stream go in by `take`; `blocks` are the answer so far in the form of the Messages API.

    Blocks are what the endpoint made, to the letter: an engine that finds its own words again has them in its cache.
    """

    def __init__(self, api: Api) -> None:
        self._take = self._messages if api == "messages" else self._chat
        self._open: dict[Any, Json] = {}
        self._arguments: dict[Any, list[str]] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Add what one event says."""
        self._take(event)

    def blocks(self) -> list[Json]:
        """The answer; calls whose arguments are no whole object are left out. Never empty."""
        made = [block for key, block in self._open.items() if self._is_whole(key, block)]
        return made or [{"type": "text", "text": NO_ANSWER}]

    def _is_whole(self, key: Any, block: Json) -> bool:
        if block["type"] == "text":
            return bool(block["text"].strip())
        if block["type"] != "tool_use":
            return bool(block["thinking"])
        try:
            block["input"] = json.loads("".join(self._arguments.get(key, ())) or "{}")
        except ValueError:
            return False
        return isinstance(block["input"], dict)

    def _messages(self, event: dict[str, Any]) -> None:
        if event.get("type") == "content_block_start":
            self._begin(event["index"], event["content_block"])
        elif event.get("type") == "content_block_delta" and event["index"] in self._open:
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                self._arguments.setdefault(event["index"], []).append(delta["partial_json"])
            elif (field := TEXTS.get(delta["type"])) is not None:
                block = self._open[event["index"]]
                block[field] = block.get(field, "") + delta[field]

    def _begin(self, index: int, block: Json) -> None:
        match block["type"]:
            case "text":
                self._open[index] = {"type": "text", "text": block.get("text", "")}
            case "thinking":
                thinking, signature = block.get("thinking", ""), block.get("signature", "")
                self._open[index] = {"type": "thinking", "thinking": thinking, "signature": signature}
            case "tool_use":
                self._open[index] = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}

    def _chat(self, event: dict[str, Any]) -> None:
        choice: Json = next(iter(event.get("choices") or ()), {})
        delta = choice.get("delta") or {}
        if delta.get("content"):
            block = self._open.setdefault("text", {"type": "text", "text": ""})
            block["text"] += delta["content"]
        for call in delta.get("tool_calls") or ():
            self._chat_call(call)

    def _chat_call(self, call: Json) -> None:
        key, function = ("call", call["index"]), call.get("function") or {}
        block = self._open.setdefault(key, {"type": "tool_use", "id": "", "name": "", "input": {}})
        block["id"] = call.get("id") or block["id"]
        block["name"] = function.get("name") or block["name"]
        self._arguments.setdefault(key, []).append(function.get("arguments") or "")
