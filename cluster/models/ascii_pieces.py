"""ASCII text to tokens by its pieces: words come again and again, and what they encode to is remembered.

A byte-level BPE never merges across the pieces that its pattern cuts a text into. In ASCII the pattern is a plain
regular expression, which Python finds faster than tiktoken encodes; other texts and patterns are not for this.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from router.limits import MAX_PIECE_CHARS, REMEMBERED_PIECES

if TYPE_CHECKING:
    from collections.abc import Callable

_PARTS: Final = re.compile(r"\\p\{(\w+)\}|\\.|\[\^?|\]|[^\\\[\]]", re.DOTALL)
_CLASSES: Final = {"L": "a-zA-Z", "Lu": "A-Z", "Ll": "a-z", "Lt": "", "Lm": "", "Lo": "", "M": "", "N": "0-9"}
_ESCAPES: Final = frozenset({r"\s", r"\S", r"\r", r"\n"})


class AsciiPieces:
    """Remembers REMEMBERED_PIECES at most, and none of more than MAX_PIECE_CHARS. Safe to use from threads."""

    def __init__(self, pattern: re.Pattern[str], encode: Callable[[str], bytes | None]) -> None:
        """`encode` gives the tokens of one piece, packed u32; None when it cannot."""
        self._cut = pattern.findall
        self._known = _Known(pattern, encode)

    def encode(self, text: str) -> bytes | None:
        """Packed u32 of ASCII text; None when a piece of it cannot be encoded by itself. Linear, and holds the
        interpreter lock: for short texts."""
        try:
            return b"".join(map(self._known.__getitem__, self._cut(text)))
        except _NoPieceError:
            return None

    def __len__(self) -> int:
        """How many pieces are known."""
        return len(self._known)

    def __repr__(self) -> str:
        return f"AsciiPieces({len(self)} known)"


class _NoPieceError(Exception):
    pass


class _Known(dict[str, bytes]):
    def __init__(self, pattern: re.Pattern[str], encode: Callable[[str], bytes | None]) -> None:
        super().__init__()
        self._pattern = pattern
        self._encode = encode

    def __missing__(self, piece: str) -> bytes:
        tokens = self._encode(piece) if self._pattern.findall(piece) == [piece] else None
        if tokens is None:
            raise _NoPieceError
        if len(piece) <= MAX_PIECE_CHARS:
            if len(self) >= REMEMBERED_PIECES:
                self.clear()  # the common ones are back soon
            self[piece] = tokens
        return tokens


def ascii_pattern(pattern: str) -> re.Pattern[str] | None:
    """What `pattern`, as tiktoken takes it, means for ASCII text; None where that is not plain to see."""
    parts: list[str] = []
    is_class = False
    for part in _PARTS.finditer(pattern):
        text, name = part[0], part[1]
        if name is not None:
            if name not in _CLASSES or not (is_class or _CLASSES[name]):
                return None
            text = _CLASSES[name] if is_class else f"[{_CLASSES[name]}]"
        elif (text.startswith("\\") and text not in _ESCAPES) or (text.startswith("[") and is_class):
            return None
        elif text.startswith("[") or text == "]":
            is_class = text != "]"
        parts.append(text)
    try:
        found = re.compile("".join(parts), re.ASCII)
    except re.error:
        return None
    return None if found.groups else found
