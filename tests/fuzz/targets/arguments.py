"""A call's arguments, however they are cut: the same JSON comes out, and what is complete is an object."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from cluster.output.arguments import Arguments
from tests.fuzz.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PIECES: Final = (
    "{", "}", "[", "]", ":", ",", '"', '"a"', '"a": ', "\\", "\\u", "\\n", "\\d", "00e9", "\\ud83d", "\\ude00",
    "d83d", "\n", "\x00", "\x1f", "\x7f", "é", "🙂", "\u2028", " ", "-", "0", "12", ".5", "e", "+", "E9", "true",
    "fals", "null", "NaN", "}}", '{"a": "', '"}', "[[[[", "9" * 200,
)  # fmt: skip


def run(data: bytes) -> None:
    draw = Draw(data)
    sizes = [1 + draw.below(9) for _ in range(4)]
    text = "".join(PIECES[byte] if byte < len(PIECES) else chr(byte) for byte in draw.rest())
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    whole = _read([text])
    assert _read(list(text)) == whole
    assert _read(pieces) == whole
    said, state, _ = whole
    said.encode()
    if state == "complete":
        assert isinstance(json.loads(said), dict)
        json.dumps(json.loads(said), ensure_ascii=False).encode()


def seeds() -> Iterator[bytes]:
    for text in (
        '{"a": 1}', '{"a": [true, null, -12.5e+9, {"a": {}}]}', '{"a": "\\n\\d\\u00e9\\ud83d\\ude00\n\x1f"}',
        '{"a": "\\ud83d\\n"}', '{"a":[[[[]]]]}} x', '{"a": fals}', '{"a": 1,}',
    ):  # fmt: skip
        yield b"\x02\x00\x05\x01" + bytes(_code(char) for char in text)


def recorded(fixtures: Path) -> Iterator[bytes]:
    """Nobody else records arguments in these pieces."""
    yield from ()


def _code(char: str) -> int:
    return PIECES.index(char) if char in PIECES else ord(char)


def _read(pieces: list[str]) -> tuple[str, str, str]:
    arguments = Arguments()
    said = "".join([arguments.push(piece) for piece in pieces])
    return said, arguments.state, arguments.surplus
