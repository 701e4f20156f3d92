"""The relay's promises, one by one."""

from __future__ import annotations

import msgspec
import pytest

from router.hashing import extended, seed_of
from router.limits import MAX_PARKED_BLOCKS, MAX_VERDICT_REASONS
from router.wire import Cleared, Removed, Stored
from tests.workers.support import CLEARED, MODEL, View, chain, payload, removed, stored
from workers import relay as relay_module
from workers import residency
from workers.relay import Relay


def relay_of(*events: object) -> Relay:
    relay = Relay(model=MODEL)
    assert relay.apply(0, payload(*events)).verdict == "applied"
    return relay


THREE = stored([11, 12, 13], [1, 2, 3, 4, 5, 6])


def test_shows_the_hashes_a_router_computes_for_the_prompt() -> None:
    verdict = Relay(model=MODEL).apply(0, payload(THREE))
    assert verdict.ops == (Stored("gpu", chain([1, 2, 3, 4, 5, 6])),)


def test_decoded_blocks_extend_the_chain_one_by_one() -> None:
    """Generation announces one block at a time; the next turn's prompt must find them all."""
    relay = relay_of(THREE)
    for seq, (parent, engine_hash) in enumerate([(13, 14), (14, 15)], 1):
        relay.apply(seq, payload(stored([engine_hash], [7, seq], parent_block_hash=parent)))
    assert relay.snapshot() == (Stored("gpu", chain([1, 2, 3, 4, 5, 6, 7, 1, 7, 2])),)


def test_branches_share_their_prefix() -> None:
    relay = relay_of(THREE, stored([21], [9, 9], parent_block_hash=11), stored([31], [8, 8], parent_block_hash=11))
    shown = set(relay.snapshot()[0].hashes)
    assert shown == {*chain([1, 2, 3, 4, 5, 6]), *chain([1, 2, 9, 9]), *chain([1, 2, 8, 8])}
    relay.check_integrity()


def test_a_block_with_two_copies_leaves_with_the_second() -> None:
    """A prompt of whole blocks sent twice computes its last block again; one eviction must not hide it."""
    relay = relay_of(THREE, stored([13], [5, 6], parent_block_hash=12))
    assert relay.apply(1, payload(removed([13]))).ops == ()
    assert relay.apply(2, payload(removed([13]))).ops == (Removed("gpu", chain([1, 2, 3, 4, 5, 6])[2:]),)


def test_a_copy_in_another_group_or_tier_keeps_a_block() -> None:
    relay = relay_of(THREE, THREE | {"group_idx": 1}, THREE | {"medium": "CPU"})
    assert relay.apply(1, payload(removed([13]))).ops == ()
    ops = relay.apply(2, payload(removed([13], group_idx=1))).ops
    last = chain([1, 2, 3, 4, 5, 6])[2:]
    assert ops == (Removed("gpu", last), Stored("cpu", last))


def test_children_of_an_evicted_parent_are_hidden_until_it_returns() -> None:
    """A router that saw them would promise a prefix that the engine cannot use."""
    relay, view = relay_of(THREE), View()
    hashes = chain([1, 2, 3, 4, 5, 6])
    view.apply((Stored("gpu", hashes),))
    view.apply(relay.apply(1, payload(removed([11]))).ops)
    assert view.tiers["gpu"] == set()
    assert relay.resident() == {"gpu": {12: 1, 13: 1}}
    view.apply(relay.apply(2, payload(stored([11], [1, 2]))).ops)
    assert view.tiers["gpu"] == set(hashes)
    relay.check_integrity()


def test_a_block_under_a_slower_parent_counts_as_slow() -> None:
    relay = relay_of(stored([11], [1, 2], medium="CPU"), stored([12], [3, 4], parent_block_hash=11))
    assert relay.snapshot() == (Stored("cpu", chain([1, 2, 3, 4])),)


def test_the_gpus_clear_leaves_what_the_host_holds() -> None:
    relay, view = Relay(model=MODEL), View()
    view.apply(relay.apply(0, payload(THREE, stored([11], [1, 2], medium="CPU"))).ops)
    view.apply(relay.apply(1, payload(CLEARED)).ops)
    assert view.tiers == {"gpu": set(), "cpu": set(chain([1, 2])), "disk": set()}
    assert relay.apply(2, payload(removed([11], medium="CPU"), CLEARED)).ops == (Cleared(),)


def test_moving_a_long_prompt_to_another_tier_searches_its_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a reset of an engine whose host holds copies would take time quadratic in the longest prompt."""
    searched = []
    place = residency.Run.place

    def counted(run: residency.Run, engine_hash: int) -> int:
        searched.append(engine_hash)
        return place(run, engine_hash)

    hashes, tokens = list(range(1, 501)), list(range(1_000))
    relay = relay_of(stored(hashes, tokens))
    monkeypatch.setattr(residency.Run, "place", counted)
    relay.apply(1, payload(stored(hashes, tokens, medium="CPU")))
    assert searched == []
    relay.apply(2, payload(CLEARED))
    assert len(searched) == 1
    assert relay.snapshot() == (Stored("cpu", chain(tokens)),)
    relay.check_integrity()


def test_tenants_with_salts_have_chains_of_their_own() -> None:
    """A salted block indexed as unsalted would draw other tenants' requests to it."""
    relay = relay_of(stored([1, 2], [1, 2, 3, 4], extra_keys=[["tenant-a"], None]))
    relay.apply(1, payload(stored([3], [5, 6], parent_block_hash=2)))
    assert relay.snapshot() == (Stored("gpu", chain([1, 2, 3, 4, 5, 6], salt="tenant-a")),)


def test_adapters_have_chains_of_their_own() -> None:
    relay = relay_of(stored([1, 2], [1, 2, 3, 4], lora_name="fr", lora_id=3, extra_keys=[["fr", "salty"], ["fr"]]))
    assert relay.snapshot() == (Stored("gpu", chain([1, 2, 3, 4], lora="fr", salt="salty")),)
    old_form = relay_of(stored([1], [1, 2], lora_id=3))
    assert old_form.snapshot() == (Stored("gpu", chain([1, 2], lora="#3")),)


def test_one_adapter_name_from_two_places_is_shown_once() -> None:
    """The adapter's path is in the engine's hash and not in its events."""
    relay, view = Relay(model=MODEL), View()
    for seq, engine_hash in enumerate([1, 2]):
        view.apply(relay.apply(seq, payload(stored([engine_hash], [1, 2], lora_name="fr"))).ops)
    relay.check_integrity()
    view.apply(relay.apply(2, payload(removed([2]))).ops)
    assert view.tiers["gpu"] == set(chain([1, 2], lora="fr"))
    view.apply(relay.apply(3, payload(removed([1]))).ops)
    assert view.tiers["gpu"] == set()


def test_images_are_part_of_a_blocks_hash() -> None:
    keys = [[["image-1", 0], b"\x01"], None]
    relay = relay_of(stored([1, 2], [1, 2, 3, 4], extra_keys=keys))
    tokens = [
        (1).to_bytes(4, "little") + (2).to_bytes(4, "little"),
        (3).to_bytes(4, "little") + (4).to_bytes(4, "little"),
    ]
    first = extended(tokens[0], parent=seed_of(MODEL), extra_keys=("image-1", 0, b"\x01"))
    assert relay.snapshot() == (Stored("gpu", (first, extended(tokens[1], parent=first, extra_keys=()))),)


def test_sparse_groups_are_counted_and_not_shown() -> None:
    """Sliding-window and recurrent layers keep blocks of their own; what is shown is then an upper bound."""
    sparse = stored([13], [1, 2, 3, 4, 5, 6], group_idx=1, kv_cache_spec_kind="sliding_window")
    relay = relay_of(THREE, sparse)
    assert relay.optimistic
    assert relay.pools() == {(0, 0): {11: 1, 12: 1, 13: 1}, (0, 1): {13: 1}}
    assert relay.apply(1, payload(removed([13], group_idx=1))).ops == ()
    relay.apply(2, payload(removed([13])))
    assert relay.resident() == {"gpu": {11: 1, 12: 1}}


def test_a_sparse_first_groups_copies_do_not_keep_a_block_of_the_followed_group() -> None:
    """A hybrid model's first group may be the sparse one: its copies come and go on their own."""
    sparse = stored([13], [5, 6], parent_block_hash=12, kv_cache_spec_kind="sliding_window")
    relay = relay_of(sparse, THREE | {"group_idx": 1})
    relay.check_integrity()
    assert relay.pools() == {(0, 0): {13: 1}, (0, 1): {11: 1, 12: 1, 13: 1}}
    verdict = relay.apply(1, payload(removed([13], group_idx=1)))
    assert verdict.ops == (Removed("gpu", chain([1, 2, 3, 4, 5, 6])[2:]),)
    assert relay.pools() == {(0, 0): {13: 1}, (0, 1): {11: 1, 12: 1}}
    relay.check_integrity()


def test_a_first_group_that_turns_sparse_later_keeps_what_other_groups_hold() -> None:
    """Nothing of it was held before, so nothing need be forgotten."""
    relay = relay_of(THREE | {"group_idx": 1})
    verdict = relay.apply(1, payload(stored([13], [5, 6], kv_cache_spec_kind="sliding_window")))
    assert (verdict.verdict, verdict.ops) == ("applied", ())
    relay.check_integrity()
    relay.apply(2, payload(removed([13])))
    assert relay.pools() == {(0, 1): {11: 1, 12: 1, 13: 1}}
    relay.check_integrity()


def test_a_group_that_turns_out_sparse_is_forgotten() -> None:
    """Old forms name no kind: the first event with fewer blocks than tokens tells."""
    relay = relay_of(stored([11, 12], [1, 2, 3, 4], kv_cache_spec_kind=None))
    verdict = relay.apply(1, payload(stored([13], [1, 2, 3, 4, 5, 6], kv_cache_spec_kind=None, block_size=2)))
    assert verdict.ops == (Cleared(),)
    relay.apply(2, payload(stored([14], [5, 6], kv_cache_spec_kind=None)))
    assert relay.snapshot() == ()
    relay.check_integrity()


def test_blocks_wait_for_a_parent_that_comes_late() -> None:
    late = [stored([13], [5, 6], parent_block_hash=12), stored([12], [3, 4], parent_block_hash=11)]
    relay = Relay(model=MODEL)
    verdict = relay.apply(0, payload(*late))
    assert (verdict.verdict, verdict.ops) == ("partly", ())
    assert relay.counters["parked"] == 2
    assert relay.apply(1, payload(stored([11], [1, 2]))).ops == (Stored("gpu", chain([1, 2, 3, 4, 5, 6])),)
    relay.check_integrity()


def test_a_waiting_block_that_left_is_not_shown_later() -> None:
    relay = Relay(model=MODEL)
    relay.apply(0, payload(stored([12, 13], [3, 4, 5, 6], parent_block_hash=11), removed([12])))
    relay.apply(1, payload(stored([11], [1, 2])))
    assert relay.snapshot() == (Stored("gpu", chain([1, 2])),)
    relay.check_integrity()
    relay.apply(2, payload(stored([12], [3, 4], parent_block_hash=11)))
    assert set(relay.snapshot()[0].hashes) == set(chain([1, 2, 3, 4, 5, 6]))


def test_blocks_without_a_parent_are_dropped_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_PARKED_BLOCKS stops an engine whose first batches were lost from filling memory with tokens."""
    assert MAX_PARKED_BLOCKS > 3
    monkeypatch.setattr(relay_module, "MAX_PARKED_BLOCKS", 3)
    relay = Relay(model=MODEL)
    for seq in range(4):
        verdict = relay.apply(seq, payload(stored([100 + seq], [seq, 0], parent_block_hash=50 + seq)))
    assert verdict.reasons == ("parent unknown, too many blocks wait already",)
    assert relay.counters["dropped"] == 1
    assert "3 parked" in repr(relay)
    relay.apply(4, payload(removed([100])))
    relay.apply(5, payload(stored([105], [5, 0], parent_block_hash=55)))
    assert relay.counters["dropped"] == 1, "a block that left gives its place to a new one"
    relay.check_integrity()
    relay.clear()
    assert "0 parked" in repr(relay), "what is forgotten waits no more"


def test_an_engine_cannot_hold_more_blocks_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_RELAY_BLOCKS stops a stream of stores without removals from filling memory."""
    monkeypatch.setattr(residency, "MAX_RELAY_BLOCKS", 4)
    relay = relay_of(THREE)
    verdict = relay.apply(1, payload(stored([14, 15], [7, 8, 9, 10], parent_block_hash=13)))
    assert verdict.verdict == "rejected"
    assert len(relay.resident()["gpu"]) == 3


def test_reasons_are_few() -> None:
    """MAX_VERDICT_REASONS stops a batch of a million broken events from making a million texts to log."""
    verdict = Relay(model=MODEL).apply(0, payload(*[{"type": "New"}] * 100, THREE))
    assert len(verdict.reasons) == MAX_VERDICT_REASONS


def test_a_batch_is_applied_once() -> None:
    relay = relay_of(THREE)
    relay.apply(1, payload(removed([13])))
    assert relay.apply(1, payload(removed([12]))).verdict == "rejected"
    assert relay.resident() == {"gpu": {11: 1, 12: 1}}
    assert relay.counters["duplicates"] == 1


def test_lost_batches_hide_everything_for_removals_may_be_among_them() -> None:
    relay = relay_of(THREE)
    verdict = relay.apply(2, payload(stored([21], [7, 8])))
    assert verdict.ops == (Cleared(), Stored("gpu", chain([7, 8])))
    assert relay.counters["gaps"] == 1


def test_number_zero_again_is_a_new_engine() -> None:
    relay = relay_of(THREE)
    relay.apply(1, payload())
    verdict = relay.apply(0, payload(stored([21], [7, 8])))
    assert verdict.ops == (Cleared(), Stored("gpu", chain([7, 8])))
    assert relay.counters["restarts"] == 1


def test_ranks_are_kept_apart() -> None:
    """Two ranks have two pools and two streams; mixing them would show one's blocks as the other's."""
    relay = relay_of(THREE)
    verdict = relay.apply(1, payload(removed([13]), rank=1))
    assert verdict.verdict == "rejected"
    assert relay.resident() == {"gpu": {11: 1, 12: 1, 13: 1}}


def test_a_block_size_that_is_not_the_replicas_is_a_loud_state() -> None:
    relay = Relay(model=MODEL, block_size=16)
    verdict = relay.apply(0, payload(THREE))
    assert (verdict.verdict, verdict.reasons) == ("rejected", ("block size 2, expected 16",))
    assert (relay.mismatch, relay.counters["mismatches"], relay.snapshot()) == (2, 1, ())
    relay.clear()
    assert relay.mismatch == 2
    relay.apply(0, payload(stored([1], list(range(16)))))
    assert (relay.mismatch is None, relay.block_size) == (True, 16)


def test_a_partial_tail_block_is_skipped() -> None:
    relay = relay_of(THREE)
    assert relay.block_size == 2
    verdict = relay.apply(1, payload(stored([14], [7], parent_block_hash=13)))
    assert (verdict.verdict, verdict.reasons) == ("partly", ("partial block of 1 tokens",))
    assert relay.mismatch is None


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlocksEvicted", "count": 3},
        ["PoolReset", 1],
        removed([1.5]),  # type: ignore[list-item]
        {"type": "BlockRemoved", "medium": "GPU"},
    ],
)
def test_an_unreadable_event_that_may_take_blocks_away_hides_everything(event: object) -> None:
    """A router may know too little, never too much."""
    relay = relay_of(THREE)
    verdict = relay.apply(1, payload(event, stored([21], [7, 8])))
    assert verdict.verdict == "partly"
    assert verdict.ops == (Cleared(), Stored("gpu", chain([7, 8])))
    assert relay.counters["lost_track"] == 1


def test_an_unreadable_event_about_one_tier_hides_only_that_tier() -> None:
    relay = relay_of(THREE, stored([14], [7, 8], parent_block_hash=13, medium="CPU"))
    verdict = relay.apply(1, payload({"type": "TierBlocksCleared", "tier": "CPU"}))
    assert verdict.ops == (Removed("cpu", chain([1, 2, 3, 4, 5, 6, 7, 8])[3:]),)


def test_removal_of_unknown_blocks_is_counted() -> None:
    relay = relay_of(THREE)
    assert relay.apply(1, payload(removed([99]), removed([11], medium="CPU"))).verdict == "applied"
    assert relay.counters["unknown_removals"] == 2


def test_a_known_block_on_another_tier_needs_no_known_parent() -> None:
    relay = relay_of(THREE)
    relay.apply(1, payload(removed([11]), stored([12, 13], [3, 4, 5, 6], parent_block_hash=11, medium="CPU")))
    assert relay.counters["parked"] == 0
    assert relay.resident() == {"gpu": {12: 1, 13: 1}, "cpu": {12: 1, 13: 1}}


def test_one_hash_twice_in_one_event_counts_twice() -> None:
    relay = relay_of(stored([11, 11], [1, 2, 1, 2]))
    assert relay.resident() == {"gpu": {11: 2}}
    relay.check_integrity()


def test_an_event_without_blocks_changes_nothing() -> None:
    assert relay_of(stored([], [], block_size=2), removed([])).snapshot() == ()


def test_a_clear_of_our_own_is_announced() -> None:
    """After a reset of an idle engine nothing comes from the engine itself."""
    relay = relay_of(THREE)
    assert relay.clear() == (Cleared(),)
    assert (relay.snapshot(), relay.resident(), relay.pools()) == ((), {"gpu": {}}, {})


def test_repr_is_compact() -> None:
    relay = relay_of(THREE)
    relay.apply(1, payload(removed([11]), stored([99], [1, 2], parent_block_hash=98)))
    assert repr(relay) == "Relay(seq 1, Residency(2 blocks, 2 hidden, 1 pools), 1 parked)"


def test_integrity_check_notices_a_wrong_tier() -> None:
    relay = relay_of(THREE)
    relay._residency._rank_of[12] = 1
    with pytest.raises(AssertionError):
        relay.check_integrity()


def test_payload_of_a_future_batch_element_is_ignored() -> None:
    batch = msgspec.msgpack.encode([1.0, [THREE], 0, {"epoch": 3}])
    assert Relay(model=MODEL).apply(0, batch).verdict == "applied"
