"""Server-sent events, as bytes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

DONE: Final = b"data: [DONE]\n\n"
COMMENT: Final = b": ping\n\n"
_encode: Final = msgspec.json.Encoder().encode


def named(event: dict[str, Any]) -> bytes:
    """An event whose name is its data's `type`, as Messages wants it."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + _encode(event) + b"\n\n"


def data(value: dict[str, Any]) -> bytes:
    """An event without a name, as Chat Completions wants it. JSON has no raw line breaks: one line is enough."""
    return b"data: " + _encode(value) + b"\n\n"
