"""The model's tokenizer (HF `tokenizers`), read from its folder: text to tokens, tokens to bytes."""

from __future__ import annotations

import json
import re
from array import array
from typing import TYPE_CHECKING, Any, Final

from tokenizers import Tokenizer

from cluster.models.byte_bpe import byte_bpe
from router.errors import ModelUnusable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START: Final = "▁"


class HfTokenizer:
    """An `Encoder` and a `Vocabulary`. Immutable; safe to use from threads."""

    def __init__(self, folder: Path) -> None:
        """Raises `ModelUnusable` when the folder has no tokenizer that can be served."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelUnusable(f"{folder} has no tokenizer.json")
        text = path.read_text(encoding="utf-8")
        try:
            self._tokenizer: Any = Tokenizer.from_str(text)
        except Exception as error:
            raise ModelUnusable(f"{path} cannot be read: {error}") from error
        spec = json.loads(text)
        self._pieces = _pieces(self._tokenizer, spec)
        self._added = re.compile("|".join(map(re.escape, self._added_texts())) or r"\b\B")
        self._fast = byte_bpe(spec, byte_alphabet(), self._encode)
        self._opening = self._found_opening()

    def encode_batch(self, texts: Sequence[str]) -> list[bytes]:
        """By the fast encoder where there is one: it knows ordinary text only. The interpreter lock is released while a
        long text is worked on."""
        if self._fast is None:
            return self._encode(texts)
        found = [None if self._added.search(text) else self._fast.encode(text) for text in texts]
        left = [text for text, tokens in zip(texts, found, strict=True) if tokens is None]
        rest = iter(self._encode(left) if left else ())
        return [next(rest) if tokens is None else tokens for tokens in found]

    def _encode(self, texts: Sequence[str]) -> list[bytes]:
        """In one call that releases the lock; `encode` would hold it for the whole text."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [array("I", encoding.ids).tobytes() for encoding in encodings]

    def _added_texts(self) -> list[str]:
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]

    def bytes_of(self, tokens: bytes) -> bytes:
        """Ids beyond the vocabulary (padding of the embedding) stand for nothing."""
        pieces = self._pieces
        return b"".join([pieces[token] for token in array("I", tokens) if token < len(pieces)])

    @property
    def size(self) -> int:
        """All token ids are below it."""
        return len(self._pieces)

    @property
    def opening(self) -> bytes:
        """What the tokenizer puts before every text by itself."""
        return self._opening

    def specials(self) -> dict[int, str]:
        """Special tokens with their texts, which `bytes_of` leaves out."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token_id: token.content for token_id, token in added.items() if token.special}

    def atoms(self) -> dict[str, bytes]:
        """Added tokens that are matched before anything else and take nothing of their surroundings."""
        added = self._tokenizer.get_added_tokens_decoder()
        plain = {
            token.content: array("I", [token_id]).tobytes()
            for token_id, token in added.items()
            if not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        }
        return plain if self._splits_cleanly(plain) else {}

    def _found_opening(self) -> bytes:
        """Of what is added around a text, the part before it."""
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        dressed = self._tokenizer.encode("a", add_special_tokens=True).ids
        at = next((i for i in range(len(dressed)) if dressed[i : i + len(bare)] == bare), 0)
        return array("I", dressed[:at]).tobytes()

    def _splits_cleanly(self, atoms: dict[str, bytes]) -> bool:
        """Whether text between atoms encodes as it does alone: not so where a tokenizer marks the start of a text."""
        sample = "ab cd\n\n e"
        whole = [f"{sample}{atom}{sample}" for atom in atoms]
        alone = self.encode_batch([sample])[0]
        return self.encode_batch(whole) == [alone + token + alone for token in atoms.values()]


def _pieces(tokenizer: Any, spec: dict[str, Any]) -> list[bytes]:
    """The bytes of every token id. Special tokens are none."""
    kinds = _decoder_kinds(spec.get("decoder") or {})
    if "ByteLevel" in kinds:
        alphabet = byte_alphabet()
    elif kinds & {"ByteFallback", "Metaspace"}:
        alphabet = None
    else:
        raise ModelUnusable(f"tokens of this model cannot be turned into text one by one (decoder: {sorted(kinds)})")
    added = tokenizer.get_added_tokens_decoder()
    pieces = [b""] * (max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1)
    for text, token_id in tokenizer.get_vocab(with_added_tokens=True).items():
        if token_id in added:
            pieces[token_id] = b"" if added[token_id].special else text.encode()
        else:
            pieces[token_id] = _sentencepiece(text) if alphabet is None else bytes(map(alphabet.__getitem__, text))
    return pieces


def _decoder_kinds(decoder: dict[str, Any]) -> set[str]:
    kinds = {str(decoder.get("type"))}
    for part in decoder.get("decoders", []):
        kinds |= _decoder_kinds(part)
    return kinds


def byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes every byte as one printable character: itself where it is one, else from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _sentencepiece(text: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(_WORD_START, " ").encode()
