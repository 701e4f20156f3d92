"""Decoding of engine batches: every form means the same, and only `WireError` leaves the decoder."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import WireError
from router.limits import MAX_ATTENTION_GROUPS, MAX_BLOCK_TOKENS
from tests.workers.support import frames_of, payload, recorded, removed, stored
from workers import kv_events
from workers.kv_events import ClearedPool, LostTrack, RemovedBlocks, SkippedEvent, StoredBlocks, decode_batch, low64


def decoded(event: Any) -> Any:
    return decode_batch(payload(event)).events[0]


def test_array_and_map_forms_decode_alike() -> None:
    array_form = ["BlockStored", [5, 6], None, [1, 2, 3, 4], 2, None, "GPU", None, [None, None], 0, "full_attention"]
    expected = StoredBlocks(
        rank=0,
        group=0,
        hashes=[5, 6],
        parent=None,
        tokens=b"".join(token.to_bytes(4, "little") for token in (1, 2, 3, 4)),
        block_size=2,
        lora="",
        salt="",
        extra_keys=[],
        indexed=True,
    )
    assert decoded(array_form) == decoded(stored([5, 6], [1, 2, 3, 4])) == expected
    assert decoded(["BlockRemoved", [5], "GPU", 0]) == decoded(removed([5])) == RemovedBlocks(0, 0, [5])
    assert decoded(["AllBlocksCleared"]) == decoded({"type": "AllBlocksCleared"}) == ClearedPool()


def test_tokens_are_little_endian_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sys.byteorder == "little"
    monkeypatch.setattr(sys, "byteorder", "big")
    assert decoded(stored([5], [1])).tokens == b"\x00\x00\x00\x01", "swapped from this machine's order"


def test_hashes_are_their_low_64_bits() -> None:
    """Signed integers, unsigned ones and digests of one block are one name."""
    digest = b"\xff" * 24 + (2**64 - 5).to_bytes(8, "big")
    assert low64(-5) == low64(2**64 - 5) == low64(digest) == 2**64 - 5
    assert decoded(removed([digest, -5, 7])).hashes == [2**64 - 5, 2**64 - 5, 7]  # type: ignore[list-item]
    assert decoded(stored([5], [1], parent_block_hash=digest)).parent == 2**64 - 5


@pytest.mark.parametrize(("medium", "rank"), [(None, 0), ("gpu", 0), ("CPU", 1), ("CPU_PINNED", 1), ("STORAGE", 2)])
def test_media_are_tiers(medium: str | None, rank: int) -> None:
    assert decoded(removed([5], medium=medium)).rank == rank


@pytest.mark.parametrize("medium", ["TAPE", 7])
def test_an_unknown_tier_is_skipped(medium: object) -> None:
    """It cannot change what the known tiers hold."""
    assert decoded(removed([5], medium=medium)) == SkippedEvent("medium of an unknown tier", is_fault=False)


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 0},
        {"block_size": MAX_BLOCK_TOKENS + 1},
        {"block_size": "2"},
        {"block_hashes": [1.5]},
        {"block_hashes": [b"short"]},
        {"block_hashes": 5},
        {"token_ids": "text"},
        {"token_ids": [1.5, 2.0]},
        {"token_ids": [-1, 2]},
        {"token_ids": [1, 2**32]},
        {"token_ids": [1]},
        {"parent_block_hash": "x"},
        {"extra_keys": [None, None]},
        {"extra_keys": [5]},
        {"extra_keys": [[1.5]]},
        {"extra_keys": "x"},
        {"group_idx": "one"},
        {"lora_name": 5},
        {"lora_id": "three"},
        {"medium": None, "kv_cache_spec_kind": "full_attention", "token_ids": [1, 2, 3, 4]},
    ],
)
def test_a_broken_store_is_a_fault_and_no_exception(change: dict[str, object]) -> None:
    event = decoded(stored([5], [1, 2], **change))
    assert isinstance(event, SkippedEvent)
    assert event.is_fault


def test_max_attention_groups_stops_an_engine_from_opening_pools_without_end() -> None:
    """Each group is a pool of its own, asked for every block that is not plain."""
    last = decoded(stored([5], [1, 2], group_idx=MAX_ATTENTION_GROUPS - 1))
    assert isinstance(last, StoredBlocks)
    for group in (MAX_ATTENTION_GROUPS, -1):
        beyond = decoded(stored([5], [1, 2], group_idx=group))
        assert isinstance(beyond, SkippedEvent)
        assert beyond.is_fault
        assert isinstance(decoded(removed([5], group_idx=group)), LostTrack)


def test_a_store_without_a_field_is_a_fault() -> None:
    event = stored([5], [1, 2])
    del event["token_ids"]
    assert decoded(event) == SkippedEvent("BlockStored: 'token_ids' is missing", is_fault=True)


@pytest.mark.parametrize("item", [7, None, "text", [], [5], {"type": 5}, {}])
def test_what_is_no_event_is_skipped(item: object) -> None:
    assert decoded(item) == SkippedEvent("event without a type", is_fault=False)


def test_unknown_events_tell_what_they_might_do() -> None:
    assert decoded({"type": "BlockMoved"}) == SkippedEvent("unknown event 'BlockMoved'", is_fault=False)
    assert decoded({"type": "TierBlocksCleared", "medium": "CPU"}) == LostTrack("unknown event 'TierBlocksCleared'", 1)
    assert decoded(["BlocksEvicted"]) == LostTrack("unknown event 'BlocksEvicted'", None)


def test_evictions_in_a_row_are_one_event_and_keep_their_place() -> None:
    """A removal before and one after a store of the same block mean different things."""
    events = [removed([1]), removed([2]), stored([1], [9]), removed([3]), removed([4], medium="CPU"), removed([5])]
    merged = decode_batch(payload(*events)).events
    assert [event.hashes for event in merged if isinstance(event, (RemovedBlocks, StoredBlocks))] == [
        [1, 2],
        [1],
        [3],
        [4],
        [5],
    ]


def test_salt_and_other_keys_are_told_apart() -> None:
    """The order on the wire is adapter, images, salt, embeddings, all untagged."""
    keys = [["fr", ["image-1", 3], "salty", b"\x01"], ["fr", ["image-1", -1]]]
    event = decoded(stored([5, 6], [1, 2], lora_name="fr", extra_keys=keys))
    assert (event.lora, event.salt) == ("fr", "salty")
    assert event.extra_keys == [("image-1", 3, b"\x01"), ("image-1", -1)]
    later = decoded(stored([6], [2], parent_block_hash=5, extra_keys=[["text"]]))
    assert (later.salt, later.extra_keys) == ("", [("text",)])


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\xc1",
        b"\xc7\x00\x01",
        msgspec.msgpack.encode(7),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode([1.0, [], "0"]),
        msgspec.msgpack.encode({"ts": 1.0}),
        b"\xa1\xff",
        b"\x81\x90\x01",
        b"\x81\x80\x01",
        b"\x91" * 60_000,
    ],
)
def test_what_is_no_batch_is_a_wire_error(document: bytes) -> None:
    with pytest.raises(WireError):
        decode_batch(document)


def test_an_oversized_batch_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_ENGINE_BATCH_BYTES stops one message from holding the loop for seconds."""
    monkeypatch.setattr(kv_events, "MAX_ENGINE_BATCH_BYTES", 10)
    with pytest.raises(WireError, match="too many bytes"):
        decode_batch(payload(removed([5])))


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200), st.data())
def test_mutated_batches_raise_nothing_else(noise: bytes, data: st.DataObject) -> None:
    """Flip, cut or insert anywhere in a real batch: a batch or a WireError."""
    good = frames_of(recorded("vllm_0_32.jsonl")[0])[2]
    at = data.draw(st.integers(0, len(good)))
    width = data.draw(st.integers(0, 8))
    for mutated in (noise, good[:at] + noise + good[at + width :], good[:at]):
        with contextlib.suppress(WireError):
            decode_batch(mutated)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(st.sampled_from(sorted(stored([5], [1, 2]))), values, max_size=4),
    st.sampled_from(["Stored", "Removed"]),
)
def test_any_value_in_any_field_is_an_outcome(change: dict[str, object], kind: str) -> None:
    event = stored([5], [1, 2]) | change | {"type": f"Block{kind}"}
    assert isinstance(decoded(event), (StoredBlocks, RemovedBlocks, SkippedEvent, LostTrack))
