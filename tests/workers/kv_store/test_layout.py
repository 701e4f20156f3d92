"""Blocks come out of a cache of any dense layout as rows of bytes, and go back to where they belong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from router.errors import ModelUnusable

if TYPE_CHECKING:
    from workers.kv_store.layout import KvLayout

torch = pytest.importorskip("torch")
BLOCKS = 6


def caches(kind: str) -> dict[str, Any]:
    """Two layers of one layout; contents all differ."""
    shapes = {
        "head-major": (BLOCKS, 2, 8, 16),
        "token-major": (BLOCKS, 8, 2, 16),
        "latent": (BLOCKS, 8, 16),
        "keys and values first": (2, BLOCKS, 8, 2, 16),
        "kernel blocks": (BLOCKS * 4, 2, 2, 16),
    }
    made = {f"layer.{name}": torch.randn(shapes[kind.split(",", maxsplit=1)[0]]) for name in range(2)}
    if kind.endswith(", a view"):  # a logical order other than that of memory
        made = {name: cache.transpose(1, 2).contiguous().transpose(1, 2) for name, cache in made.items()}
    if kind.endswith(", half"):
        made = {name: cache.to(torch.bfloat16) for name, cache in made.items()}
    return made


def layout_of(cache: dict[str, Any]) -> KvLayout:
    from workers.kv_store.layout import KvLayout

    return KvLayout(cache, blocks=BLOCKS)


KINDS = ["head-major", "head-major, a view", "head-major, half", "token-major", "latent", "keys and values first"]


@pytest.mark.parametrize("kind", [*KINDS, "kernel blocks", "keys and values first, half"])
def test_a_block_goes_through_bytes_into_another_place_of_another_cache(kind: str) -> None:
    there, here = caches(kind), caches(kind)
    before = {name: cache.clone() for name, cache in here.items()}
    source, target = layout_of(there), layout_of(here)
    assert source.fingerprint == target.fingerprint
    rows = source.rows(3)
    source.gather([4, 0, 5], rows)
    target.scatter(rows, [1, 2])
    for name, cache in here.items():
        want = before[name]
        for a, b in ((4, 1), (0, 2)):
            if kind.startswith("keys"):
                want[:, b] = there[name][:, a]
            elif kind.startswith("kernel"):
                want[b * 4 : b * 4 + 4] = there[name][a * 4 : a * 4 + 4]
            else:
                want[b] = there[name][a]
        assert torch.equal(cache, want)


def test_layers_of_different_shapes_and_numbers_stand_in_one_row() -> None:
    mixed = {"b": torch.randn(BLOCKS, 4), "a": torch.randn(BLOCKS, 2, 3).to(torch.float16)}
    layout = layout_of(mixed)
    assert layout.block_bytes == 4 * 4 + 6 * 2
    rows = layout.rows(1)
    layout.gather([2], rows)
    other = {name: torch.zeros_like(cache) for name, cache in mixed.items()}
    layout_of(other).scatter(rows, [3])
    assert all(torch.equal(other[name][3], mixed[name][2]) for name in mixed)


def test_other_shapes_or_numbers_have_other_fingerprints() -> None:
    kinds = ["head-major", "head-major, half", "token-major", "latent", "kernel blocks"]
    assert len({layout_of(caches(kind)).fingerprint for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("shape", [(BLOCKS + 1, 4), (3, BLOCKS, 4), (BLOCKS,), (0, 4)])
def test_a_cache_that_is_not_cut_into_blocks_is_refused(shape: tuple[int, ...]) -> None:
    """Bytes of the wrong tokens would be wrong answers."""
    with pytest.raises(ModelUnusable, match="kv_store"):
        layout_of({"layer": torch.zeros(shape)})


def test_a_state_of_several_tensors_is_refused() -> None:
    """That of a layer that is no attention."""
    with pytest.raises(ModelUnusable, match="kv_store"):
        layout_of({"layer": [torch.zeros(BLOCKS, 4)]})
