"""A streaming client for both APIs that measures what an agent feels: time to the first text."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from load_tests.stream_events import READERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp

Api = Literal["messages", "chat"]


class Turn(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: Literal["user", "assistant"]
    text: str


class Prompt(msgspec.Struct, frozen=True):
    """What to send: system text as blocks, then the turns."""

    system: tuple[str, ...]
    turns: tuple[Turn, ...]


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one streamed request showed. Token counts are the server's own usage."""

    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int
    text: str
    output_tokens: int = 0


async def stream(http: aiohttp.ClientSession, *, api: Api, model: str, prompt: Prompt, max_tokens: int) -> Sample:
    """Send one request and read it to its end. Raises `RuntimeError` with the server's words on any failure."""
    path, body = _messages_body(prompt) if api == "messages" else _chat_body(prompt)
    body |= {"model": model, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    start = time.perf_counter()
    first: float | None = None
    usage: dict[str, int] = {}
    text: list[str] = []
    async with http.post(path, json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}: {await response.text()}")
        async for event in _events(response):
            read = READERS[api](event)
            if read.error is not None:
                raise RuntimeError(f"the stream failed: {read.error}")
            if read.text and first is None:
                first = time.perf_counter()
            text.append(read.text)
            usage |= read.usage
    if first is None or not usage:
        raise RuntimeError(f"{path} ended without text or without usage")
    return Sample(ttft_ms=(first - start) * 1e3, text="".join(text), **usage)


async def count_tokens(http: aiohttp.ClientSession, *, model: str, prompt: Prompt) -> int:
    """Input tokens of `prompt` as the server counts them."""
    _, body = _messages_body(prompt)
    async with http.post("/v1/messages/count_tokens", json=body | {"model": model}) as response:
        response.raise_for_status()
        return int((await response.json())["input_tokens"])


def _messages_body(prompt: Prompt) -> tuple[str, dict[str, Any]]:
    system = [{"type": "text", "text": text} for text in prompt.system]
    turns = [{"role": turn.role, "content": turn.text} for turn in prompt.turns]
    return "/v1/messages", {"system": system, "messages": turns}


def _chat_body(prompt: Prompt) -> tuple[str, dict[str, Any]]:
    system = [{"role": "system", "content": [{"type": "text", "text": text} for text in prompt.system]}]
    turns = [{"role": turn.role, "content": turn.text} for turn in prompt.turns]
    return "/v1/chat/completions", {"messages": system + turns, "stream_options": {"include_usage": True}}


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])
