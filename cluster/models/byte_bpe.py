"""Byte-level BPE through tiktoken: several times faster than `tokenizers`, and without the interpreter lock.

tiktoken merges by one rank per token where HF merges by pairs, and takes one pattern where HF composes pre-tokenizers.
Both say the same for tokenizers whose merges are consistent, which is shown for each model when it loads: by its whole
vocabulary and by texts that cross every boundary between kinds of characters. What cannot be shown is not used.
"""

from __future__ import annotations

import itertools
import unicodedata
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tiktoken

from cluster.models.ascii_pieces import AsciiPieces, ascii_pattern
from router.limits import MAX_PIECEWISE_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_GPT2: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The same behind a split at every digit: a space before a digit ends its piece, as at the end of the text.
_GPT2_BEHIND_DIGITS: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
_LONGER_TEXTS: Final = 4_096  # of the comparison when a model loads
_UNKNOWN: Final = 2**32 - 1
_SAMPLES: Final = (
    "a", "Z", "é", "ß", "Ω", "ж", "漢", "한", "ひ", "7", "²", "Ⅷ", "٣", " ", "  ", "\t", "\n", "\r\n", "\u00a0",
    "\u2003", "\u200b", "\u0301", "'s", "'LL", "’", ".", "__", "{}", "🙂", "👩\u200d💻", "\x00", "\ufeff", "\ud7ff",
    "\U0010ffff", "def f(x):",
)  # fmt: skip


class ByteBpe:
    """An encoder of ordinary text. Safe to use from threads."""

    def __init__(self, encoding: tiktoken.Encoding, ids: Any, pattern: str, *, normalise: bool) -> None:
        """`ids` are token ids by rank; `_UNKNOWN` for bytes that the vocabulary lacks. `pattern` is the encoding's."""
        self._encoding = encoding
        self._ids = ids
        self._has_gaps = bool((ids == _UNKNOWN).any())
        self._normalise = normalise
        ascii_only = ascii_pattern(pattern)
        self._pieces = None if ascii_only is None else AsciiPieces(ascii_only, self.whole)

    def encode(self, text: str) -> bytes | None:
        """Packed u32, little-endian. Linear in the text. None for rare texts that only the tokenizer itself can encode:
        bytes outside its vocabulary, and runs of white space so long that the pattern gives up.

        Holds the interpreter lock for ASCII texts of up to MAX_PIECEWISE_CHARS, no other.
        """
        if self._pieces is not None and len(text) <= MAX_PIECEWISE_CHARS and text.isascii():
            found = self._pieces.encode(text)
            if found is not None:
                return found
        return self.whole(text)

    def whole(self, text: str) -> bytes | None:
        """The same, always by tiktoken, which releases the interpreter lock."""
        if self._normalise:
            text = unicodedata.normalize("NFC", text)
        try:
            ids = self._ids[self._encoding.encode_to_numpy(text, disallowed_special=())]
        except ValueError:
            return None
        if self._has_gaps and (ids == _UNKNOWN).any():
            return None
        packed: bytes = ids.tobytes()
        return packed


def byte_bpe(
    spec: Mapping[str, Any], alphabet: Mapping[str, int], encode: Callable[[Sequence[str]], list[bytes]]
) -> ByteBpe | None:
    """An encoder equal to the tokenizer that `spec` (a tokenizer.json) describes; None when there is no such.

    `alphabet` maps the characters that tokens are written in to bytes; `encode` is the tokenizer's own, to compare to.
    """
    pattern = _pattern(spec.get("pre_tokenizer") or {})
    normaliser = (spec.get("normalizer") or {}).get("type")
    model = spec["model"]
    if pattern is None or normaliser not in (None, "NFC") or model.get("type", "BPE") != "BPE" or _is_modified(model):
        return None
    ranks, ids = _ranks(model, alphabet)
    if ranks is None:
        return None
    encoding = tiktoken.Encoding("model", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    found = ByteBpe(encoding, ids, pattern, normalise=normaliser == "NFC")
    return found if _is_equal(found, ranks, encode) else None


def _is_modified(model: Mapping[str, Any]) -> bool:
    """Whether the merging itself is not the plain one."""
    return bool(
        model.get("dropout")
        or model.get("byte_fallback")
        or model.get("continuing_subword_prefix")
        or model.get("end_of_word_suffix")
    )


def _pattern(pre_tokenizer: Mapping[str, Any]) -> str | None:
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    last = parts[-1]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    match parts[:-1], last.get("use_regex", True):
        case [], True:
            return _GPT2
        case [{"type": "Digits", "individual_digits": True}], True:
            return _GPT2_BEHIND_DIGITS
        case [{"type": "Split", "behavior": "Isolated", "pattern": {"Regex": str(pattern)}} as split], False:
            return None if split.get("invert") else pattern
        case _:
            return None


def _ranks(model: Mapping[str, Any], alphabet: Mapping[str, int]) -> tuple[dict[bytes, int] | None, Any]:
    """Bytes to rank (single bytes first, then merges in their order), and rank to token id. None for a vocabulary whose
    merges name other tokens than its own."""
    vocabulary: dict[str, int] = model["vocab"]
    written = {text: bytes(alphabet[char] for char in text) for text in vocabulary if set(text) <= alphabet.keys()}
    pairs = (pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"])
    merged = dict.fromkeys("".join(pair) for pair in pairs)
    if model.get("ignore_merges"):
        merged |= dict.fromkeys(text for text in written if len(text) > 1)
    if not merged.keys() <= written.keys():
        return None, None
    order = dict.fromkeys(alphabet) | merged
    ranks = {bytes(alphabet[char] for char in text): rank for rank, text in enumerate(order)}
    return ranks, np.array([vocabulary.get(text, _UNKNOWN) for text in order], dtype="<u4")


def _is_equal(found: ByteBpe, ranks: Mapping[bytes, int], encode: Callable[[Sequence[str]], list[bytes]]) -> bool:
    texts = [token.decode() for token in ranks if _is_text(token)]
    texts += ["".join(pair) for pair in itertools.product(_SAMPLES, repeat=2)]
    texts += [f"{a}{b}{a} {b} {a}" for a, b in itertools.pairwise(texts[:: len(texts) // _LONGER_TEXTS + 1])]
    own = encode(texts)
    return all(
        ours in (None, theirs)
        for way in (found.whole, found.encode)
        for ours, theirs in zip(map(way, texts), own, strict=True)
    )


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
