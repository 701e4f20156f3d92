"""Weights are told apart by what they are, not by where they lie or how old they are."""

from __future__ import annotations

import os
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from router.errors import ModelUnusable
from workers.kv_store.identity import SAMPLE_BYTES, engine_identity, weights_identity

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 40 * SAMPLE_BYTES


def folder_of(path: Path, weights: bytes) -> str:
    path.mkdir()
    (path / "model.safetensors").write_bytes(weights)
    (path / "notes.txt").write_text(str(path))
    return str(path)


def test_copies_are_equal_wherever_they_lie(tmp_path: Path) -> None:
    weights = random.Random(1).randbytes(SIZE)
    one, other = folder_of(tmp_path / "a", weights), folder_of(tmp_path / "b", weights)
    os.utime(tmp_path / "b" / "model.safetensors", (1, 1))
    assert weights_identity(one, "") == weights_identity(other, "")


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
def test_weights_that_were_trained_further_under_the_same_path_differ(tmp_path: Path, place: int) -> None:
    """Else their users would be answered from the old ones' blocks. Training changes all of a file."""
    weights = bytearray(random.Random(1).randbytes(SIZE))
    folder = folder_of(tmp_path / "a", bytes(weights))
    before = weights_identity(folder, "")
    for byte in range(place % SAMPLE_BYTES, SIZE, SAMPLE_BYTES // 2):
        weights[byte] ^= 1
    (tmp_path / "a" / "model.safetensors").write_bytes(weights)
    assert weights_identity(folder, "") != before


def test_a_models_commit_on_the_hub_tells() -> None:
    assert weights_identity("org/model", "a") != weights_identity("org/model", "b")


def test_a_small_file_is_read_whole(tmp_path: Path) -> None:
    assert weights_identity(folder_of(tmp_path / "a", b"x"), "") != weights_identity(
        folder_of(tmp_path / "b", b"y"), ""
    )


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_hashes_that_do_not_name_blocks_elsewhere_are_refused(algorithm: str) -> None:
    """Quick hashes are random in each process, and can be made to collide."""
    config = SimpleNamespace(
        model_config=None, cache_config=SimpleNamespace(prefix_caching_hash_algo=algorithm), parallel_config=None
    )
    with pytest.raises(ModelUnusable, match="sha256"):
        engine_identity(config)
