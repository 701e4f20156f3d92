"""Tokens to text, as they come: only whole characters leave, and all parts together equal decoding in one shot."""

from __future__ import annotations

import codecs
from typing import Protocol


class Vocabulary(Protocol):
    """The bytes each token stands for. Tokens that are no text (special ones) stand for none."""

    def bytes_of(self, tokens: bytes) -> bytes:
        """The bytes of packed u32 tokens, concatenated. O(tokens)."""
        ...


class Detokenizer:
    """One generation's text. A character split over tokens is held back until its last byte has come."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def holds(self) -> bool:
        """Whether part of a character is held back."""
        return bool(self._utf8.getstate()[0])

    def push(self, tokens: bytes) -> str:
        """Text that is certain now. Bytes that can never become a character turn into U+FFFD."""
        return self._utf8.decode(self._vocabulary.bytes_of(tokens))

    def finish(self) -> str:
        """What a generation that ends inside a character leaves: U+FFFD, or nothing."""
        return self._utf8.decode(b"", final=True)
