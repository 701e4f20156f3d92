"""Text out: however a generation is cut into deltas, the same text leaves and the same stop string ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster.output.assembly import Assembly, Piece
from cluster.output.detokenizer import Detokenizer
from cluster.output.events import TextDelta
from cluster.output.parsing import PlainParser
from cluster.output.stop import StopScanner
from tests.fuzz.draw import Draw
from workers.engine import TokenDelta

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN_BYTES: Final = 4
# Characters whole and in parts, bytes that are never text, and a token that stands for none.
TEXTS: Final = (
    b"a", b"b", b"ab", b"<", b"</", b">", "é".encode(), "é".encode()[:1], "é".encode()[1:], "€".encode()[:2],
    "🙂".encode()[:1], "🙂".encode()[1:3], "🙂".encode()[3:], b"\xff", b"\xed\xa0\x80", b"",
)  # fmt: skip
STOPS: Final = ("a", "ab", "aba", "bb", "</", "</>", "é", "éa", "🙂", "�", "ab�", "<a<a<b")


class Words:
    """A vocabulary of sixteen tokens."""

    def bytes_of(self, tokens: bytes) -> bytes:
        return b"".join(TEXTS[tokens[at] % len(TEXTS)] for at in range(0, len(tokens), TOKEN_BYTES))


def run(data: bytes) -> None:
    draw = Draw(data)
    stops = draw.sequence(4, lambda: draw.one_of(STOPS))
    sizes = [1 + draw.below(5) for _ in range(4)]
    tokens = b"".join(bytes((one % len(TEXTS), 0, 0, 0)) for one in draw.rest()[:100])
    text = Words().bytes_of(tokens).decode("utf-8", "replace")
    one_by_one = [tokens[at : at + TOKEN_BYTES] for at in range(0, len(tokens), TOKEN_BYTES)]
    _check_detokenizer(one_by_one, text)
    _check_scanner(stops, text, sizes)
    whole = _assembled(stops, [tokens])
    assert _assembled(stops, one_by_one) == whole
    said = "".join(event.text for event in whole.events if isinstance(event, TextDelta))
    assert not stops or not any(stop in said for stop in stops)
    assert text.startswith(said)


def seeds() -> Iterator[bytes]:
    yield bytes(range(40))
    yield b"\x02\x00\x01\x01\x01\x01\x01" + bytes([0, 1, 0, 1, 1])
    yield b"\x01\x05\x00\x00\x00\x00" + bytes([3, 4, 5, 4, 5])
    yield b"\x03\x08\x09\x0a\x02\x02\x02\x02" + bytes([10, 11, 12, 7, 8, 13, 0, 1, 14])
    yield b"\x00\x01\x01\x01\x01" + bytes(range(15, -1, -1))


def recorded(fixtures: Path) -> Iterator[bytes]:
    """Nobody else records deltas over this vocabulary."""
    yield from ()


def _check_detokenizer(one_by_one: list[bytes], text: str) -> None:
    detokenizer = Detokenizer(Words())
    assert "".join(map(detokenizer.push, one_by_one)) + detokenizer.finish() == text


def _check_scanner(stops: list[str], text: str, sizes: list[int]) -> None:
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    assert _scanned(stops, pieces) == _scanned(stops, list(text)) == _scanned(stops, [text])


def _scanned(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    scanner, out = StopScanner(stops), ""
    for piece in pieces:
        scan = scanner.push(piece)
        out += scan.text
        if scan.stop is not None:
            return out, scan.stop
    return out + scanner.finish(), None


def _assembled(stops: list[str], parts: list[bytes]) -> Piece:
    assembly = Assembly(Words(), PlainParser(), stops=stops, prompt_tokens=9)
    deltas = [TokenDelta(tokens=part) for part in parts]
    return assembly.push_all([*deltas, TokenDelta(finish_reason="length")])
