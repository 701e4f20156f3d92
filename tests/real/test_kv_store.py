"""Real engines that share a store: what one computed the other finds, and nothing that breaks is ever an answer."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from router.errors import ModelUnusable
from tests.conformance.engines import BLOCK_SIZE
from tests.real.kv_faults import KINDS, Faults, Pair

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.vllm

FEW, MANY = 2 * len(KINDS), 1_000


@pytest.fixture(scope="module")
def pair(tiny_model: Path) -> Iterator[Pair]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="kv-", dir=memory if memory.is_dir() else None))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that vLLM imports
        made = Pair(tiny_model, folder)
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.mark.parametrize("length", [33, 64, 500, 3000])
def test_what_one_engine_computed_the_other_loads_and_says_the_same(pair: Pair, length: int) -> None:
    """In one step or in many: 3,000 tokens come in six chunks."""
    prompt = pair.here.prompt(length)
    expected, files = pair.compute(prompt)
    assert len(files) == length // BLOCK_SIZE
    assert pair.load(prompt) == (expected, (length - 1) // BLOCK_SIZE * BLOCK_SIZE)


def test_loaded_blocks_are_announced_like_computed_ones(pair: Pair) -> None:
    """So a router knows at once that the second replica has them too."""
    prompt = pair.here.prompt(500)
    pair.compute(prompt)
    assert pair.there.shown_prefix(prompt) == 0
    pair.load(prompt)
    pair.there.run(pair.there.until(lambda: pair.there.shown_prefix(prompt) == 480))
    assert pair.load(prompt)[1] == 480


def test_a_longer_prompt_loads_what_it_shares_and_is_saved_beyond(pair: Pair) -> None:
    start = pair.here.prompt(320)
    pair.compute(start)
    longer = [*start, *pair.here.prompt(320)]
    expected, files = pair.compute(longer, stored=10)
    assert len(files) == 10
    assert pair.load(longer) == (expected, 608)


def test_what_the_pool_evicted_comes_back_from_the_store(pair: Pair) -> None:
    prompt = pair.here.prompt(1000)
    expected, _ = pair.compute(prompt)
    for _ in range(4):
        pair.compute(pair.here.prompt(2000))
    pair.here.run(pair.here.until(lambda: pair.here.shown_prefix(prompt) < 992))
    again = pair.here.run(pair.here.deltas(pair.here.generation(prompt, max_tokens=len(expected))))
    assert again[-1].cached_tokens == 992


@pytest.mark.parametrize(("owner", "other"), [("a", "b"), ("a", ""), ("", "a")])
def test_another_tenants_blocks_are_never_found(pair: Pair, owner: str, other: str) -> None:
    """The same prompt under another salt has other names in the store, so not even its presence can be asked for."""
    prompt = pair.here.prompt(400)
    expected, files = pair.compute(prompt, salt=owner)
    stamps = [file.stat().st_mtime_ns for file in files]
    found, cached = pair.load(prompt, salt=other)
    assert (found, cached) == (expected, 0)
    assert [file.stat().st_mtime_ns for file in files] == stamps, "nor were they touched"
    assert pair.load(prompt, salt=owner) == (expected, 384)


def test_a_prompt_is_computed_from_its_first_missing_block_on_and_says_so(pair: Pair) -> None:
    """What the engine tells as cached is what it did not compute, though it had counted on more."""
    prompt = pair.here.prompt(500)
    expected, files = pair.compute(prompt)
    sixth = sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)[5]
    sixth.write_bytes(b"not a block")
    assert pair.load(prompt) == (expected, 5 * BLOCK_SIZE)


def test_models_with_other_than_full_attention_are_refused() -> None:
    """Of a window's blocks most are gone when a prompt is whole."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    from workers.kv_store.connector import _check_dense

    shape = {"block_size": 32, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
    full = SimpleNamespace(kv_cache_spec=FullAttentionSpec(**shape))
    window = SimpleNamespace(kv_cache_spec=SlidingWindowSpec(**shape, sliding_window=64))
    _check_dense(SimpleNamespace(kv_cache_groups=[full]))
    for groups in ([window], [full, window], []):
        with pytest.raises(ModelUnusable, match="full attention"):
            _check_dense(SimpleNamespace(kv_cache_groups=groups))


def test_faults_cost_time_and_nothing_else(pair: Pair) -> None:
    counts = Faults(pair, seed=1).play(FEW)
    assert sum(counts.get(f"{kind}: all loaded", 0) for kind in ("none", "stall")) >= FEW // len(KINDS)
    assert any("computed" in outcome for outcome in counts)


@pytest.mark.slow
def test_a_thousand_faults_cost_time_and_nothing_else(pair: Pair) -> None:
    Faults(pair, seed=2).play(MANY)
