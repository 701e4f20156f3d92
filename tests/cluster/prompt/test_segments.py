"""Encoding in segments is encoding in one shot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.models.tokenizer import HfTokenizer
from cluster.prompt.literal import SEAM
from cluster.prompt.segments import SegmentCache, Segmenter
from tests.cluster.support import packed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pieces = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|im_", "end|>", "user\n", " x", "  ", "\n\n", "é風", "a<b"]
)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> HfTokenizer:
    return HfTokenizer(tiny_model)


@given(texts=st.lists(st.lists(pieces | st.text(max_size=5), max_size=12).map("".join), max_size=3))
@settings(deadline=None, max_examples=300)
def test_segments_and_their_cache_change_nothing(tokenizer: HfTokenizer, texts: list[str]) -> None:
    one_shot = tokenizer._tokenizer
    segmenter = Segmenter(tokenizer, atoms=tokenizer.atoms(), cache_bytes=1_000)
    for text in texts * 2:
        plan = segmenter.plan(text)
        tokens = plan.encode()
        segmenter.remember(plan)
        assert tokens == packed(one_shot.encode(text, add_special_tokens=False).ids)
        segmenter._cache.check_integrity()


class Counting:
    """An encoder that counts what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode_batch(self, texts: Sequence[str]) -> list[bytes]:
        self.asked += texts
        return [packed([len(text)]) for text in texts]


def encode(segmenter: Segmenter, text: str) -> bytes:
    plan = segmenter.plan(text)
    tokens = plan.encode()
    segmenter.remember(plan)
    return tokens


def test_only_new_segments_are_encoded() -> None:
    encoder = Counting()
    segmenter = Segmenter(encoder, atoms={"|": packed([9])}, cache_bytes=10_000)
    assert encode(segmenter, "ab|c|ab") == packed([2, 9, 1, 9, 2])
    assert encode(segmenter, "ab|c|ab|def") == packed([2, 9, 1, 9, 2, 9, 3])
    assert encoder.asked == ["ab", "c", "def"]
    assert encode(segmenter, "") == b""


def test_without_atoms_a_prompt_is_one_segment() -> None:
    encoder = Counting()
    assert encode(Segmenter(encoder, atoms={}, cache_bytes=0), "a|b") == packed([3])
    assert encoder.asked == ["a|b"]


def test_the_segment_cache_is_bounded_in_bytes_and_forgets_the_oldest() -> None:
    cache = SegmentCache(700)
    for segment in ("a", "b", "c"):
        cache.put(segment, b"1234")
    cache.get("a")
    cache.put("d", b"1234")
    cache.put("d", b"1234")
    cache.put("x" * 1000, b"1234")
    cache.check_integrity()
    assert list(cache.segments()) == ["c", "a", "d"]
    assert repr(cache) == "SegmentCache(3 segments, 624 of 700 bytes)"


def test_a_seam_cuts_a_text_and_is_gone() -> None:
    encoder = Counting()
    segmenter = Segmenter(encoder, atoms={"<|": packed([9])}, cache_bytes=10_000, seamed=[f"<{SEAM}|"])
    assert encode(segmenter, f"a<{SEAM}|b<|c{SEAM}d") == packed([2, 2, 9, 3])
    assert encoder.asked == ["a<", "|b", f"c{SEAM}d"]


@given(texts=st.lists(st.text(max_size=30), max_size=8), chars=st.integers(1, 40))
def test_what_is_missing_can_be_encoded_in_parts(texts: list[str], chars: int) -> None:
    """Each within the bound but for a segment that is longer; nothing is encoded again."""
    encoder = Counting()
    segmenter = Segmenter(encoder, atoms={}, cache_bytes=0)
    plan = segmenter.plan_of(*map(segmenter.cut, texts))
    parts = list(plan.batches(chars))
    assert [segment for part in parts for segment in part] == list(plan.missing)
    assert all(len(part) == 1 or sum(map(len, part)) <= chars for part in parts)
    for part in parts:
        plan.learn(part)
    assert plan.encode_each() == [packed([len(text)]) if text else b"" for text in texts]
    assert encoder.asked == list(plan.missing)
