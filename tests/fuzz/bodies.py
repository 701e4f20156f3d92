"""Request bodies for all protocols, near to valid, and what must hold of whatever a parser makes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cluster.prompt.conversation import Media, Text, Thinking, ToolCall, ToolReference, ToolRemoval, ToolResult
from router.errors import ClientError
from router.limits import (
    MAX_BLOCKS_PER_MESSAGE,
    MAX_HINT_CHARS,
    MAX_IGNORED_FIELDS,
    MAX_MESSAGES,
    MAX_STOP_SEQUENCE_CHARS,
    MAX_STOP_SEQUENCES,
    MAX_TOOLS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from cluster.prompt.conversation import Conversation
    from tests.fuzz.draw import Draw

RAW, BUILT = b"\x00", b"\x01"
MAX_COMPLAINT_CHARS: Final = 2_000
MAX_PLACE_CHARS: Final = 64  # beside a client's own word, for where it stood
PLACES: Final = {
    "system": (Text, ToolReference, ToolRemoval),
    "user": (Text, Media, ToolReference, ToolResult),
    "assistant": (Text, Thinking, ToolCall),
}
ROLES: Final = ("user", "assistant", "system", "developer", "tool", "")
CONTENTS: Final[tuple[Any, ...]] = (
    "hi",
    "",
    [],
    [{"type": "text", "text": "hi"}],
    [{"type": "image"}],
    [{"type": "text"}],
    None,
)


def check(parse: Callable[[bytes], Conversation], body: bytes) -> None:
    """A parser gives a conversation within all limits, or a complaint that a client may see."""
    try:
        found = parse(body)
    except ClientError as error:
        complaint = str(error)
    else:
        _check_conversation(found)
        return
    assert 0 < len(complaint) <= MAX_COMPLAINT_CHARS, complaint[:200]


def _check_conversation(found: Conversation) -> None:
    assert len(found.messages) + len(found.system) <= MAX_MESSAGES + MAX_BLOCKS_PER_MESSAGE
    for message in found.messages:
        assert all(isinstance(block, PLACES[message.role]) for block in message.blocks), message
    assert len(found.tools) <= MAX_TOOLS
    assert len({tool.name for tool in found.tools}) == len(found.tools)
    assert all(isinstance(msgspec.json.decode(tool.parameters), dict) for tool in found.tools)
    assert found.tool_choice.mode != "tool" or found.tool_choice.name in {tool.name for tool in found.tools}
    limits = found.limits
    assert limits.max_tokens is None or limits.max_tokens >= 0
    assert 0 <= limits.temperature <= 2
    assert 0 < limits.top_p <= 1
    assert 0 <= limits.top_k < 2**31
    assert len(limits.stop) <= MAX_STOP_SEQUENCES
    assert all(0 < len(stop) <= MAX_STOP_SEQUENCE_CHARS for stop in limits.stop)
    assert len(found.hints.session) <= MAX_HINT_CHARS
    assert len(found.hints.ignored) <= MAX_IGNORED_FIELDS
    assert all(len(name) <= MAX_HINT_CHARS + MAX_PLACE_CHARS for name in found.hints.ignored)
    msgspec.json.encode(found)


def body_of(
    draw: Draw,
    fields: dict[str, Any],
    *,
    extras: dict[str, Any],
    blocks: Sequence[dict[str, Any]] = (),
    turns: Sequence[dict[str, Any]] = (),
) -> bytes:
    """One body: raw bytes, or these fields with own messages, some of the extras, and some damage.

    Some messages are made of `blocks`, some are `turns`, the shapes that a protocol knows.
    """
    if not draw.below(2):
        return draw.rest()
    chosen = {name: extras[name] for name in draw.sequence(4, lambda: draw.one_of(sorted(extras)))}
    messages = draw.sequence(4, lambda: _message(draw, blocks, turns))
    body = draw.damaged(fields | chosen | ({"messages": messages} if messages else {}))
    return msgspec.json.encode(body)


def seeds(fields: dict[str, Any], *, extras: dict[str, Any]) -> Iterator[bytes]:
    """The plain body, one with each extra, and a few built ones."""
    yield RAW + json.dumps(fields).encode()
    for name, value in extras.items():
        yield RAW + json.dumps(fields | {name: value}).encode()
    yield RAW + b'{"messages":' + b"[" * 100 + b"]" * 100 + b"}"
    for step in (3, 5, 7):
        yield BUILT + bytes(at * step % 256 for at in range(60))


def recorded(fixtures: Path) -> Iterator[bytes]:
    """The bodies that real clients sent."""
    for path in sorted((fixtures / "client_sessions").glob("*.json")):
        for request in json.loads(path.read_text(encoding="utf-8"))["requests"]:
            body = request.get("body", request)
            yield RAW + (body.encode() if isinstance(body, str) else json.dumps(body).encode())


def _message(draw: Draw, blocks: Sequence[dict[str, Any]], turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if turns and draw.one_in(2):
        return draw.damaged(draw.one_of(turns))
    content: Any = draw.one_of(CONTENTS)
    if blocks and draw.one_in(2):
        content = draw.sequence(4, lambda: draw.damaged(draw.one_of(blocks)))
    message = {"role": draw.one_of(ROLES), "content": content}
    return draw.damaged(message) if draw.one_in(4) else message
