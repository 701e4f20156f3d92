"""How an engine's KV cache is cut into blocks: many tensors of layers in, one row of bytes per block out, and back.

vLLM gives one tensor per layer, whose first dimension counts blocks, or kernel blocks of which several make one block
(or whose second does, with keys and values first). A block's row holds its part of every layer, in the order of the
layers' names, each in the logical order of its elements, so strides of the cache do not matter.
"""

from __future__ import annotations

import hashlib
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from router.errors import ModelUnusable
from workers.kv_store.frames import LAYOUT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping


class KvLayout:
    """The tensors of one worker as rows of `block_bytes`. Raises `ModelUnusable` for tensors of unknown shape."""

    def __init__(self, caches: Mapping[str, Any], *, blocks: int) -> None:
        self._layers = [_by_block(name, caches[name], blocks) for name in sorted(caches)]
        self.device = self._layers[0].device if self._layers else torch.device("cpu")
        sizes = [prod(layer.shape[1:]) * layer.element_size() for layer in self._layers]
        self._offsets = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
        self.block_bytes = self._offsets[-1]
        described = [(str(layer.dtype), tuple(layer.shape[1:])) for layer in self._layers]
        self.fingerprint = hashlib.blake2b(repr(described).encode(), digest_size=LAYOUT_BYTES).digest()

    def __repr__(self) -> str:
        return f"<KvLayout {len(self._layers)} layers, {self.block_bytes} bytes a block on {self.device}>"

    def rows(self, count: int) -> Any:
        """Room for so many blocks in host memory; pinned where a device copies to it."""
        return torch.empty((count, self.block_bytes), dtype=torch.uint8, pin_memory=self.device.type == "cuda")

    def gather(self, ids: list[int], rows: Any) -> None:
        """Copy blocks `ids` out of the cache into `rows`. On a device only enqueued, on its current stream."""
        chosen = torch.tensor(ids, device=self.device)
        near = rows if rows.device == self.device else torch.empty(rows.shape, dtype=rows.dtype, device=self.device)
        for place, layer in enumerate(self._layers):
            part = layer.index_select(0, chosen).flatten(1)
            self._part(near, place).copy_(part.view(torch.uint8))
        if near is not rows:
            rows.copy_(near, non_blocking=True)

    def scatter(self, rows: Any, ids: list[int]) -> None:
        """Copy the first rows into the blocks `ids` of the cache. On a device only enqueued, on its current stream."""
        chosen = torch.tensor(ids, device=self.device)
        near = rows[: len(ids)].to(self.device, non_blocking=True)
        for place, layer in enumerate(self._layers):
            part = self._part(near, place).contiguous().view(layer.dtype)
            layer.index_copy_(0, chosen, part.view(len(ids), *layer.shape[1:]))

    def _part(self, rows: Any, place: int) -> Any:
        return rows[:, self._offsets[place] : self._offsets[place + 1]]


def _by_block(name: str, cache: Any, blocks: int) -> Any:
    """A view of the cache with one block per entry of its first dimension."""
    if not isinstance(cache, torch.Tensor) or cache.dim() < 2:
        raise ModelUnusable(f"kv_store cannot hold the cache of {name}: it is no tensor of blocks")
    if cache.shape[0] == 2 and cache.shape[1] % blocks == 0 and cache.shape[0] % blocks:
        cache = cache.transpose(0, 1)
    if cache.shape[0] % blocks or not cache.shape[0]:
        raise ModelUnusable(f"kv_store cannot hold the cache of {name}: {tuple(cache.shape)} for {blocks} blocks")
    return cache.unflatten(0, (blocks, cache.shape[0] // blocks))
