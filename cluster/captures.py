"""Captured requests, read back from files: a body, one body per line, or a recorded session of a client.

A line or entry may be a bare body, or an object that holds one under `body` beside `path`, `api` or `method`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, get_args

from cluster.prompt.conversation import Api
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

APIS: Final[tuple[Api, ...]] = get_args(Api)
PATHS: Final[dict[str, Api]] = {
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
}
FILE_ENDINGS: Final = (".json", ".jsonl", ".ndjson")
_ANTHROPIC_BLOCKS: Final = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "document"})


class Captured(NamedTuple):
    """One request: `where` in which file, its protocol, its path if known, its headers (lower case) and its body."""

    where: str
    api: Api
    path: str
    headers: dict[str, str]
    body: bytes


def read_captures(path: Path, api: Api | None = None) -> list[Captured]:
    """All requests of a file, in order; `api` says the protocol instead of guessing.

    Requests without a body (probes) are left out; what is not JSON is kept for its protocol to refuse. Raises
    `InvalidRequest` for a file that cannot be read or holds no request."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise InvalidRequest(f"{path}: cannot be read: {fault}") from None
    found = [captured for entry in _entries(path, text) if (captured := _captured(entry, api)) is not None]
    if not found:
        raise InvalidRequest(f"{path}: holds no request: put a body, one body a line, or a recorded session into it")
    return found


def files_of(path: Path) -> list[Path]:
    """`path` itself, or the captures in a folder, by name."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in FILE_ENDINGS)


class _Entry(NamedTuple):
    """What stands for one request: as it was read, and its text where it has one of its own."""

    where: str
    value: Any
    text: str | None


def _entries(path: Path, text: str) -> Iterator[_Entry]:
    whole = _read(text)
    if isinstance(whole, dict) and isinstance(whole.get("requests"), list):
        yield from (_Entry(f"{path}#{at}", entry, None) for at, entry in enumerate(whole["requests"]))
    elif isinstance(whole, list):
        yield from (_Entry(f"{path}#{at}", entry, None) for at, entry in enumerate(whole))
    elif whole is not None:
        yield _Entry(str(path), whole, text)
    else:
        for at, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield _Entry(f"{path}:{at}", _read(line), line)


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _captured(entry: _Entry, api: Api | None) -> Captured | None:
    if not (isinstance(entry.value, dict) and "body" in entry.value):
        text = entry.text if entry.text is not None else json.dumps(entry.value, ensure_ascii=False)
        return Captured(entry.where, api or guessed_api(entry.value), "", {}, text.encode())
    body, path = entry.value["body"], str(entry.value.get("path", ""))
    if body is None or str(entry.value.get("method", "POST")).upper() != "POST":
        return None
    said, headers = entry.value.get("api"), entry.value.get("headers")
    found = api or (cast(Api, said) if said in APIS else None) or PATHS.get(path.partition("?")[0])
    named = {str(k).lower(): str(v) for k, v in headers.items()} if isinstance(headers, dict) else {}
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return Captured(entry.where, found or guessed_api(body), path, named, text.encode())


def guessed_api(body: Any) -> Api:
    """The protocol a body is written in. Chat and Messages share their outline: the first thing that only one of them
    has decides, Messages if there is none."""
    if not isinstance(body, dict):
        return "messages"
    if "input" in body or "instructions" in body:
        return "responses"
    if "prompt" in body:
        return "completions"
    if "system" in body or "stop_sequences" in body or "thinking" in body:
        return "messages"
    return "chat" if _looks_like_chat(body) else "messages"


def _looks_like_chat(body: dict[str, Any]) -> bool:
    if {"max_completion_tokens", "stream_options", "response_format", "n", "stop", "functions"} & body.keys():
        return True
    tools = [tool for tool in body.get("tools") or () if isinstance(tool, dict)]
    if any("input_schema" in tool for tool in tools):
        return False
    if any(tool.get("type") == "function" for tool in tools):
        return True
    messages = [message for message in body.get("messages") or () if isinstance(message, dict)]
    if any(block in _ANTHROPIC_BLOCKS for message in messages for block in _block_types(message)):
        return False
    first = messages[0].get("role") if messages else None
    return first in ("system", "developer") or any(
        message.get("role") == "tool" or "tool_calls" in message for message in messages
    )


def _block_types(message: dict[str, Any]) -> Iterator[object]:
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and isinstance(block.get("type"), str):
            yield block["type"]
