"""What one event of a streamed answer says, in both APIs."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from load_tests.client import Api

PIECES: Final = ("text", "thinking", "partial_json")
CHAT_PIECES: Final = ("content", "reasoning_content", "reasoning")


class Event(NamedTuple):
    """`text` is what the answer says, `has_token` whether anything was generated (thinking and tool calls too),
    `usage` the counts it tells: prompt_tokens, cached_tokens, output_tokens."""

    text: str = ""
    has_token: bool = False
    usage: Mapping[str, int] = MappingProxyType({})
    error: str | None = None
    is_last: bool = False


def read_messages(event: dict[str, Any]) -> Event:
    """Of `/v1/messages`."""
    kind = event.get("type")
    if kind == "error":
        return Event(error=str(event.get("error")))
    delta = event.get("delta") or {}
    usage = event.get("usage") or (event.get("message") or {}).get("usage") or {}
    has_token = kind == "content_block_delta" and any(delta.get(name) for name in PIECES)
    return Event(delta.get("text") or "", has_token, _messages_usage(usage), is_last=kind == "message_stop")


def read_chat(event: dict[str, Any]) -> Event:
    """Of `/v1/chat/completions`. The last event is told by its finish reason; usage may follow it."""
    if "error" in event:
        return Event(error=str(event["error"]))
    choice: dict[str, Any] = next(iter(event.get("choices") or ()), {})
    delta = choice.get("delta") or {}
    has_token = any(delta.get(name) for name in CHAT_PIECES) or bool(delta.get("tool_calls"))
    usage = _chat_usage(event.get("usage") or {})
    return Event(delta.get("content") or "", has_token, usage, is_last=bool(choice.get("finish_reason")))


READERS: Final[Mapping[Api, Callable[[dict[str, Any]], Event]]] = {"messages": read_messages, "chat": read_chat}


def _messages_usage(usage: dict[str, Any]) -> dict[str, int]:
    counts = {"output_tokens": usage["output_tokens"]} if "output_tokens" in usage else {}
    if "input_tokens" in usage:
        cached = usage.get("cache_read_input_tokens") or 0
        created = usage.get("cache_creation_input_tokens") or 0
        counts |= {"prompt_tokens": usage["input_tokens"] + cached + created, "cached_tokens": cached}
    return counts


def _chat_usage(usage: dict[str, Any]) -> dict[str, int]:
    if "prompt_tokens" not in usage:
        return {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    output = usage.get("completion_tokens") or 0
    return {"prompt_tokens": usage["prompt_tokens"], "cached_tokens": cached, "output_tokens": output}
