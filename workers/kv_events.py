"""Decodes an engine's batch of KV events, in every form vLLM has sent since 0.9, to one normal form.

Batches and events were arrays first and maps later; hashes are integers (signed, then unsigned) or raw digests; fields
were added at the end over time. Nothing here changes state, and nothing but `WireError` leaves `decode_batch`.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final, NamedTuple

import msgspec

from router.errors import WireError
from router.limits import MAX_ATTENTION_GROUPS, MAX_BLOCK_TOKENS, MAX_ENGINE_BATCH_BYTES

U64: Final = 2**64 - 1
TIERS: Final = ("gpu", "cpu", "disk")  # fastest first; a rank is a place in this tuple
_RANK_OF_MEDIUM: Final = {"gpu": 0, "cpu": 1, "cpu_pinned": 1, "host": 1, "disk": 2, "storage": 2}
# Groups whose blocks stay resident as long as their prefix does; absent in versions that knew only these.
FULL_ATTENTION_KINDS: Final = {None, "full_attention", "mla_attention", "sink_full_attention"}
# A word in an unknown event's name that means it may take blocks away.
_LOSING_WORDS: Final = ("clear", "remov", "evict", "reset")

_BATCH_FIELDS: Final = ("ts", "events", "data_parallel_rank")
_STORED_FIELDS: Final = """
block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx
kv_cache_spec_kind kv_cache_spec_sliding_window locality ownership session_id
"""
_EVENT_FIELDS: Final = {
    "BlockStored": _STORED_FIELDS.split(),
    "BlockRemoved": ["block_hashes", "medium", "group_idx"],
    "AllBlocksCleared": [],
}
_decoder: Final = msgspec.msgpack.Decoder()


class StoredBlocks(NamedTuple):
    """Blocks that became resident, in prompt order after `parent` (None: from the start). `tokens` are packed u32.

    `extra_keys` has one entry per block, or is empty when no block has any: the parts of the engine's own key that are
    neither tokens nor the adapter's name nor the salt, which stand in `lora` and `salt`. `indexed` is false for
    attention kinds whose blocks say nothing about the whole prefix; `tokens` may then cover more than the hashes."""

    rank: int
    group: int
    hashes: list[int]
    parent: int | None
    tokens: bytes
    block_size: int
    lora: str
    salt: str
    extra_keys: list[tuple[str | int | bytes, ...]]
    indexed: bool


class RemovedBlocks(NamedTuple):
    """One physical copy of each of these blocks is gone."""

    rank: int
    group: int
    hashes: list[int]


class ClearedPool(NamedTuple):
    """The whole GPU pool was forgotten; slower tiers were not."""


class SkippedEvent(NamedTuple):
    """An event that is not applied. `is_fault` tells a broken event from one that is merely unknown or empty."""

    reason: str
    is_fault: bool


class LostTrack(NamedTuple):
    """An unreadable event that may have taken blocks away: what the tier of this rank holds is no longer known (None:
    what any holds)."""

    reason: str
    rank: int | None


EngineEvent = StoredBlocks | RemovedBlocks | ClearedPool | SkippedEvent | LostTrack


class EngineBatch(NamedTuple):
    """One batch; `data_parallel_rank` is None in forms that have no ranks."""

    data_parallel_rank: int | None
    events: list[EngineEvent]


def decode_batch(payload: bytes) -> EngineBatch:
    """The batch in `payload`, its events in order (removals in a row from one pool as one).

    Raises `WireError` when it is no batch at all; a bad event in a good batch becomes `SkippedEvent` or `LostTrack`.
    Time and memory are linear in the payload's length."""
    if len(payload) > MAX_ENGINE_BATCH_BYTES:
        raise WireError("batch: too many bytes")
    try:
        raw = _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise WireError(f"batch: not msgpack ({type(error).__name__})") from None
    if type(raw) is list:
        raw = dict(zip(_BATCH_FIELDS, raw, strict=False))
    if type(raw) is not dict or type(raw.get("events")) is not list:
        raise WireError("batch: no list of events")
    rank = raw.get("data_parallel_rank")
    if rank is not None and type(rank) is not int:
        raise WireError("data_parallel_rank: not an integer")
    events: list[EngineEvent] = []
    for item in raw["events"]:
        event = _event(item)
        before = events[-1] if events else None
        # An eviction is one event per block; they come by the hundred.
        if type(event) is RemovedBlocks and type(before) is RemovedBlocks and event[:2] == before[:2]:
            before.hashes.extend(event.hashes)
        else:
            events.append(event)
    return EngineBatch(rank, events)


def low64(block_hash: object) -> int:
    """The engine's hash as u64: low 64 bits of an integer, last 8 bytes of a digest. Raises ValueError."""
    if type(block_hash) is int:
        return block_hash & U64
    if type(block_hash) is bytes and len(block_hash) >= 8:
        return int.from_bytes(block_hash[-8:], "big")
    raise ValueError("hash: neither an integer nor a digest of 8 bytes or more")


def _event(item: object) -> EngineEvent:
    name, fields = _named_fields(item)
    if name not in _EVENT_FIELDS:
        if any(word in name.lower() for word in _LOSING_WORDS):
            return LostTrack(f"unknown event {name[:64]!r}", _rank(fields.get("medium") or fields.get("tier") or "any"))
        return SkippedEvent(f"unknown event {name[:64]!r}" if name else "event without a type", is_fault=False)
    if name == "AllBlocksCleared":
        return ClearedPool()
    rank = _rank(fields.get("medium"))
    if rank is None:
        return SkippedEvent("medium of an unknown tier", is_fault=False)
    try:
        return _stored(fields, rank) if name == "BlockStored" else _removed(fields, rank)
    except KeyError as error:
        reason = f"{name}: {error} is missing"
    except (ValueError, TypeError, OverflowError) as error:
        reason = f"{name}: {error}"
    return SkippedEvent(reason, is_fault=True) if name == "BlockStored" else LostTrack(reason, rank)


def _named_fields(item: object) -> tuple[str, dict[Any, Any]]:
    if type(item) is dict:
        name = item.get("type")
        return (name, item) if type(name) is str else ("", item)
    if type(item) is list and item and type(item[0]) is str:
        return item[0], dict(zip(_EVENT_FIELDS.get(item[0], ()), item[1:], strict=False))
    return "", {}


def _stored(fields: dict[Any, Any], rank: int) -> EngineEvent:
    token_ids, block_size = fields["token_ids"], fields["block_size"]
    if not token_ids and block_size == 0:
        return SkippedEvent("placeholder without tokens", is_fault=False)
    if type(block_size) is not int or not 0 < block_size <= MAX_BLOCK_TOKENS:
        raise ValueError(f"block_size: not in 1..{MAX_BLOCK_TOKENS}")
    hashes = _hashes(fields)
    tokens = _packed(token_ids)
    kind = fields.get("kv_cache_spec_kind")
    # Without a kind, only a sparse group announces more tokens than the blocks it keeps.
    is_sparse = kind is None and fields.get("group_idx") is not None and len(token_ids) > len(hashes) * block_size
    indexed = kind in FULL_ATTENTION_KINDS and not is_sparse
    if indexed and len(token_ids) != len(hashes) * block_size:
        raise ValueError(f"{len(token_ids)} tokens for {len(hashes)} blocks of {block_size}")
    parent = fields["parent_block_hash"]
    lora = _lora(fields)
    keys = _extra_keys(fields.get("extra_keys"), blocks=len(hashes), lora=lora)
    salt = ""
    if keys and parent is None:
        salt, keys[0] = _salt(keys[0])
    return StoredBlocks(
        rank=rank,
        group=_group(fields),
        hashes=hashes,
        parent=None if parent is None else low64(parent),
        tokens=tokens,
        block_size=block_size,
        lora=lora,
        salt=salt,
        extra_keys=[tuple(_flat(entry)) for entry in keys] if any(keys) else [],
        indexed=indexed,
    )


def _removed(fields: dict[Any, Any], rank: int) -> RemovedBlocks:
    return RemovedBlocks(rank, _group(fields), _hashes(fields))


def _packed(token_ids: object) -> bytes:
    if type(token_ids) is not list:
        raise TypeError("token_ids: not a list")
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _hashes(fields: dict[Any, Any]) -> list[int]:
    raw = fields["block_hashes"]
    if type(raw) is not list:
        raise TypeError("block_hashes: not a list")
    try:
        array("Q", raw)  # the common case, checked in C
    except (TypeError, OverflowError):
        return [low64(item) for item in raw]
    return raw


def _rank(medium: object) -> int | None:
    if medium is None:
        return 0  # older forms know only the GPU
    return _RANK_OF_MEDIUM.get(medium.lower()) if type(medium) is str else None


def _group(fields: dict[Any, Any]) -> int:
    group = fields.get("group_idx") or 0
    if type(group) is not int or not 0 <= group < MAX_ATTENTION_GROUPS:
        raise ValueError(f"group_idx: not in 0..{MAX_ATTENTION_GROUPS - 1}")
    return group


def _lora(fields: dict[Any, Any]) -> str:
    name, number = fields.get("lora_name"), fields.get("lora_id")
    if type(name) is str:
        return name
    if name is None and number is None:
        return ""
    if name is None and type(number) is int:
        return f"#{number}"
    raise TypeError("lora: neither a name nor a number")


def _extra_keys(raw: object, *, blocks: int, lora: str) -> list[list[Any]]:
    """One list per block, without the adapter's name; empty when there are none."""
    if not raw:
        return []
    if type(raw) is not list or len(raw) != blocks:
        raise ValueError("extra_keys: not one entry per block")
    if not any(raw):
        return []
    if any(entry is not None and type(entry) is not list for entry in raw):
        raise TypeError("extra_keys: an entry is not a list")
    entries = [entry or [] for entry in raw]
    return [entry[1:] if lora and entry[:1] == [lora] else entry for entry in entries]


def _salt(entry: list[Any]) -> tuple[str, list[Any]]:
    """The salt among the first block's keys (untagged: the last bare text) and the other keys."""
    for at in reversed(range(len(entry))):
        if type(entry[at]) is str:
            return entry[at], entry[:at] + entry[at + 1 :]
    return "", entry


def _flat(entry: list[Any]) -> list[str | int | bytes]:
    parts = [value for part in entry for value in (part if type(part) is list else [part])]
    if not all(isinstance(part, (str, int, bytes)) for part in parts):
        raise TypeError("extra_keys: a part of an unknown kind")
    return parts
