"""Shared by the tests of the workers: recorded frames, hand-made engine events, and a router's view of operations."""

from __future__ import annotations

import base64
import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from router.hashing import block_hashes, seed_of
from router.wire import Cleared, Op, Removed, Stored

if TYPE_CHECKING:
    from workers.relay import Relay, Verdict

MODEL = "a-model"
SHARED = Path(os.environ.get("KVIST_SHARED", Path(__file__).parents[2].parent / "shared"))
TIER_OF_MEDIUM = {"GPU": "gpu", "CPU": "cpu", "STORAGE": "disk"}


def recorded(name: str) -> list[dict[str, Any]]:
    """Lines of a recorded fixture; fails where it is missing."""
    with (SHARED / "fixtures" / "kv_events" / name).open() as lines:
        return [json.loads(line) for line in lines]


def frames_of(line: dict[str, Any]) -> list[bytes]:
    return [base64.b64decode(frame) for frame in line["frames"]]


def feed(relay: Relay, frames: list[bytes]) -> Verdict | None:
    """What a consumer of the engine's socket does with one message; None when it is no batch of an engine."""
    if len(frames) != 3 or len(frames[1]) != 8:
        return None
    return relay.apply(struct.unpack(">Q", frames[1])[0], frames[2])


def stored(hashes: list[int], tokens: list[int], **fields: Any) -> dict[str, Any]:
    """A BlockStored event as vLLM 0.32 sends it."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": len(tokens) // max(1, len(hashes)),
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    } | fields


def removed(hashes: list[int], **fields: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0} | fields


CLEARED = {"type": "AllBlocksCleared"}


def payload(*events: Any, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), rank])


def chain(tokens: list[int], *, block_size: int = 2, salt: str = "", lora: str = "") -> tuple[int, ...]:
    """The hashes a router computes for a prompt."""
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return tuple(block_hashes(packed, block_size=block_size, seed=seed_of(MODEL, lora=lora, salt=salt)))


class View:
    """A router's strict view: every removal must be of something shown, every store of something new."""

    def __init__(self) -> None:
        self.tiers: dict[str, set[int]] = {"gpu": set(), "cpu": set(), "disk": set()}

    def apply(self, ops: tuple[Op, ...]) -> None:
        for op in ops:
            match op:
                case Cleared():
                    self.__init__()  # type: ignore[misc]
                case Stored(tier, hashes):
                    assert len(set(hashes)) == len(hashes)
                    assert not any(held & set(hashes) for held in self.tiers.values())
                    self.tiers[tier] |= set(hashes)
                case Removed(tier, hashes):
                    assert self.tiers[tier] >= set(hashes)
                    self.tiers[tier] -= set(hashes)

    def equals(self, snapshot: tuple[Stored, ...]) -> bool:
        return {tier: held for tier, held in self.tiers.items() if held} == {
            run.medium: set(run.hashes) for run in snapshot
        }
