"""Server-sent events, as bytes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

DONE: Final = b"data: [DONE]\n\n"
COMMENT: Final = b": ping\n\n"
_encode: Final = msgspec.json.Encoder().encode
HOLE: Final = "\x00"
_HOLE: Final = _encode(HOLE)


def named(event: dict[str, Any]) -> bytes:
    """An event whose name is its data's `type`, as Messages wants it."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + _encode(event) + b"\n\n"


def data(value: dict[str, Any]) -> bytes:
    """An event without a name, as Chat Completions wants it. JSON has no raw line breaks: one line is enough."""
    return b"data: " + _encode(value) + b"\n\n"


class Frame(NamedTuple):
    """An event encoded but for one text: most events of a stream differ in nothing else."""

    before: bytes
    after: bytes

    def filled(self, text: str) -> bytes:
        """The event with this text."""
        return b"".join((self.before, _encode(text), self.after))


def frame(event: bytes) -> Frame:
    """Of an event that says `HOLE` for the text; it must be the last `HOLE` in it."""
    before, _, after = event.rpartition(_HOLE)
    return Frame(before, after)
