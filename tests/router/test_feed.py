"""The feed notices every loss, repairs it exactly, and believes nothing in between."""

from __future__ import annotations

import itertools

import pytest

from router import feed as feed_module
from router.errors import KvistBug
from router.feed import TRANSITIONS, Event, State
from router.limits import (
    FEED_BEHIND_HEARTBEATS,
    FEED_SETTLED_S,
    LEASE_S,
    RETIRED_INCARNATIONS,
    SNAPSHOT_BACKOFF_MAX_S,
    SNAPSHOT_BACKOFF_S,
    SNAPSHOT_TIMEOUT_S,
)
from router.wire import Cleared, Removed, SnapshotChunk, Stored
from tests.router.feed_support import Shown, chunk, data, heartbeat, joining, live


def test_it_joins_by_snapshot_and_replays_what_was_published_meanwhile() -> None:
    """Frames wait until there is something to build on; those the snapshot covers are not applied again."""
    shown = joining()
    for seq in (3, 4, 5):
        shown.frame(data(seq))
    assert shown.fenced()
    assert shown.alive()
    assert shown.blocks == set()
    shown.chunk(chunk(4, 1, 2))
    assert shown.blocks == {1, 2, 1_005}
    assert not shown.fenced()


def test_a_snapshot_that_is_behind_what_was_heard_since_is_not_enough() -> None:
    """Frames lost during the snapshot fence again at once."""
    shown = joining()
    shown.frame(heartbeat(7))
    shown.chunk(chunk(4, 1))
    assert shown.state() is State.GAP
    assert shown.feed.behind == 3
    shown.tick(SNAPSHOT_BACKOFF_MAX_S)
    shown.chunk(chunk(7, 2), now=SNAPSHOT_BACKOFF_MAX_S)
    assert shown.state() is State.LIVE
    assert shown.blocks == {2}


def test_a_gap_fences_at_once_and_asks_for_a_snapshot() -> None:
    """The frame after the hole is held back, not applied."""
    shown = live(4)
    shown.tick(FEED_SETTLED_S)
    shown.frame(data(6), now=FEED_SETTLED_S)
    assert shown.state() is State.RESYNC
    assert shown.fenced()
    assert shown.blocks == {1, 2}
    assert len(shown.requests) == 2


def test_what_a_snapshot_does_not_list_is_gone() -> None:
    """The removals may have been among the frames that were lost."""
    shown = live(4)
    shown.frame(data(6))
    shown.tick(SNAPSHOT_BACKOFF_MAX_S)
    shown.chunk(chunk(6, 2, 3), now=SNAPSHOT_BACKOFF_MAX_S)
    assert shown.state() is State.LIVE
    assert shown.blocks == {2, 3}


def test_a_heartbeat_makes_the_loss_of_the_newest_frames_visible() -> None:
    """Tail loss shows without any further event."""
    shown = live(4)
    shown.frame(heartbeat(4))
    assert not shown.fenced()
    shown.frame(heartbeat(5))
    assert shown.fenced()


def test_late_frames_that_close_the_hole_make_the_snapshot_unnecessary() -> None:
    """Reordering is repaired from the buffer; the answer that comes later is ignored."""
    shown = live(4)
    shown.frame(data(6))
    shown.tick(SNAPSHOT_BACKOFF_MAX_S)
    shown.frame(data(5))
    assert shown.state() is State.LIVE
    assert shown.blocks == {1, 2, 1_005, 1_006}
    shown.chunk(chunk(4, 77))
    assert 77 not in shown.blocks
    assert shown.feed.counters["late_chunks"] == 1


def test_repeated_frames_are_applied_once() -> None:
    """A late copy cannot bring a removed block back."""
    shown = live(4)
    shown.frame(data(5))
    shown.frame(data(6, Removed("gpu", (1_005,))))
    shown.frame(data(5))
    assert shown.blocks == {1, 2}
    assert shown.feed.counters["duplicate_frames"] == 1


def test_a_new_incarnation_drops_the_old_state_at_once() -> None:
    """A restart that happens to continue the numbers is not taken for the same stream."""
    shown = live(4)
    shown.frame(data(5, incarnation="i2"))
    assert shown.blocks == set()
    assert shown.state() is State.JOINING
    shown.tick(SNAPSHOT_BACKOFF_MAX_S)
    shown.chunk(chunk(5, 9, incarnation="i2"))
    assert shown.blocks == {9}


def test_late_frames_of_a_retired_incarnation_are_ignored() -> None:
    """They neither change blocks nor renew the lease."""
    shown = live(4)
    shown.frame(heartbeat(0, "i2"))
    shown.frame(data(5))
    shown.frame(data(6), now=LEASE_S)
    assert shown.feed.incarnation == "i2"
    assert shown.blocks == set()
    assert shown.feed.counters["late_incarnation_frames"] == 2
    shown.tick(LEASE_S + 0.1)
    assert not shown.alive()


def test_the_snapshot_says_which_incarnation_lives() -> None:
    """A late frame of an older, unknown incarnation misleads the feed only until the next snapshot."""
    shown = live(4)
    shown.frame(data(900, incarnation="i0"))
    shown.tick(SNAPSHOT_BACKOFF_MAX_S)
    shown.chunk(chunk(5, 8), now=SNAPSHOT_BACKOFF_MAX_S)
    assert shown.feed.incarnation == "i1"
    assert shown.blocks == {8}
    assert not shown.fenced()


def test_a_retired_incarnation_is_heard_again_when_the_current_one_is_silent() -> None:
    """Otherwise one misleading frame and a lost snapshot would lock the living stream out."""
    shown = live(4)
    shown.frame(heartbeat(0, "i0"), now=1.0)
    shown.tick(1.0 + LEASE_S + 0.1)
    assert not shown.alive()
    shown.frame(heartbeat(4), now=4.0)
    assert shown.alive()
    assert shown.feed.incarnation == "i1"


def test_retired_incarnations_stops_an_endless_list_of_old_names() -> None:
    """The memory of old incarnations is bounded."""
    shown = live(4)
    for number in range(3 * RETIRED_INCARNATIONS):
        shown.frame(heartbeat(-1, f"x{number}"))
    assert len(shown.feed._retired) == RETIRED_INCARNATIONS


def test_silence_ends_the_lease_and_an_unbroken_stream_resumes_without_a_snapshot() -> None:
    """A pause of the subscriber costs nothing when nothing was lost."""
    shown = live(4)
    shown.tick(LEASE_S)
    assert shown.alive()
    shown.tick(LEASE_S + 0.01)
    assert not shown.alive()
    assert shown.fenced()
    shown.tick(LEASE_S + 5)
    shown.frame(data(5), now=LEASE_S + 5)
    assert shown.state() is State.LIVE
    assert shown.blocks == {1, 2, 1_005}
    assert len(shown.requests) == 1


def test_a_stream_with_a_hole_resumes_through_a_snapshot() -> None:
    """The lease is back at once, the credit is not."""
    shown = live(4)
    shown.tick(LEASE_S + 1)
    shown.frame(heartbeat(9), now=LEASE_S + 2)
    assert shown.state() is State.RESYNC
    assert shown.alive()


def test_a_replica_never_heard_of_loses_its_lease_and_joins_when_it_speaks() -> None:
    """Requests stop when nobody is there."""
    shown = joining()
    shown.tick(LEASE_S + 0.1)
    assert not shown.alive()
    asked = len(shown.requests)
    shown.tick(LEASE_S + 9)
    assert len(shown.requests) == asked
    shown.frame(heartbeat(-1), now=LEASE_S + 9)
    shown.chunk(chunk(-1), now=LEASE_S + 9)
    assert shown.state() is State.LIVE


def asked_at(shown: Shown, until_s: float) -> list[float]:
    times, seen = [], len(shown.requests)
    for step in range(int(until_s * 100)):
        now = step / 100
        shown.frame(heartbeat(9), now)
        shown.tick(now)
        times += [now] * (len(shown.requests) - seen)
        seen = len(shown.requests)
    return times


def test_snapshot_timeout_and_backoff_stop_a_storm_of_requests() -> None:
    """Each attempt that gets no answer doubles the pause before the next, up to a bound."""
    times = asked_at(joining(), 12.0)
    pauses = [round(later - earlier - SNAPSHOT_TIMEOUT_S, 3) for earlier, later in itertools.pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(4 * SNAPSHOT_BACKOFF_S, abs=0.02)
    assert pauses[-1] == pytest.approx(SNAPSHOT_BACKOFF_MAX_S, abs=0.02)


def test_a_lossy_channel_cannot_cause_a_snapshot_per_frame() -> None:
    """Success that does not last counts for the back-off like failure; FEED_SETTLED_S of peace ends it."""
    shown = joining()
    seq = 0
    for step in range(200):
        shown.frame(heartbeat(seq := seq + 2), step / 100)
        shown.tick(step / 100)
        shown.chunk(chunk(seq), now=step / 100)
    assert len(shown.requests) < 10
    shown.frame(heartbeat(seq), 2.0)
    shown.tick(2.6)
    shown.chunk(chunk(seq), now=2.6)
    shown.tick(2.6 + FEED_SETTLED_S)
    shown.frame(heartbeat(seq + 1), 2.7 + FEED_SETTLED_S)
    assert shown.state() is State.RESYNC


def test_each_new_part_extends_the_time_a_snapshot_may_take() -> None:
    """A large snapshot is slow, not lost."""
    shown = joining()
    for index in range(3):
        now = 0.9 * SNAPSHOT_TIMEOUT_S * (index + 1)
        shown.frame(heartbeat(4), now)
        shown.tick(now)
        shown.chunk(chunk(4, index, index=index, count=3), now=now)
    assert shown.blocks == {0, 1, 2}
    assert len(shown.requests) == 1


def test_parts_may_come_twice_and_in_any_order_and_count_only_when_complete() -> None:
    """A partial set shows nothing."""
    shown = joining()
    shown.chunk(chunk(4, 30, index=2, count=3))
    shown.chunk(chunk(4, 30, index=2, count=3))
    shown.chunk(chunk(4, 10, index=0, count=3))
    assert shown.blocks == set()
    shown.chunk(chunk(4, 20, index=1, count=3))
    assert shown.blocks == {10, 20, 30}


@pytest.mark.parametrize(
    "other",
    [
        chunk(5, 2, index=1, count=2),
        chunk(4, 2, index=1, count=3),
        chunk(4, 2, index=1, count=2, incarnation="z"),
        chunk(4, 1, index=0, count=1),
    ],
)
def test_parts_of_different_snapshots_are_never_mixed(other: SnapshotChunk) -> None:
    """The whole attempt is discarded and asked for again."""
    shown = joining()
    shown.chunk(chunk(4, 1, index=0, count=2))
    shown.chunk(other)
    assert shown.state() is State.JOINING
    assert shown.feed.counters["inconsistent_snapshots"] == 1
    shown.frame(heartbeat(4), 1.0)
    shown.tick(1.0)
    shown.chunk(chunk(4, 3), now=1.0)
    assert shown.blocks == {3}


def test_an_answer_to_an_older_request_is_ignored() -> None:
    """A snapshot from before a loss cannot bring removed blocks back."""
    shown = joining()
    shown.tick(SNAPSHOT_TIMEOUT_S)
    shown.tick(SNAPSHOT_TIMEOUT_S + SNAPSHOT_BACKOFF_MAX_S)
    assert len(shown.requests) == 2
    shown.chunk(chunk(4, 1), nonce=shown.requests[0])
    assert shown.blocks == set()
    assert shown.state() is State.JOINING


def test_a_snapshot_of_more_blocks_than_the_replica_can_hold_is_refused() -> None:
    """Its parts are let go at once."""
    shown = joining()
    shown.chunk(chunk(4, *range(60), index=0, count=3))
    shown.chunk(chunk(4, *range(60), index=1, count=3))
    assert shown.feed.counters["snapshot_overflows"] == 1
    assert not shown.feed._parts


def test_feed_buffer_frames_stops_endless_frames_behind_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer is let go and another snapshot is asked for."""
    monkeypatch.setattr(feed_module, "FEED_BUFFER_FRAMES", 5)
    shown = joining()
    for seq in range(10, 17):
        shown.frame(data(seq))
    assert shown.feed.counters["buffer_overflows"] == 1
    shown.chunk(chunk(12, 1))
    assert shown.feed.counters["late_chunks"] == 1
    shown.tick(1.0)
    shown.chunk(chunk(16, 5), now=1.0)
    assert shown.blocks == {5}
    assert not shown.fenced()


def test_feed_buffer_hashes_stops_endless_blocks_behind_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few frames may hold many blocks."""
    monkeypatch.setattr(feed_module, "FEED_BUFFER_HASHES", 5)
    shown = live(4)
    shown.frame(data(6, Stored("gpu", (1, 2, 3))))
    shown.frame(data(7, Stored("gpu", (4, 5, 6)), Cleared()))
    assert shown.feed.counters["buffer_overflows"] == 1
    assert not shown.feed._buffer


def test_feed_behind_heartbeats_stops_a_stream_whose_numbers_went_back() -> None:
    """A publisher that starts over under its old name is noticed; one late heartbeat is not such a publisher."""
    shown = live(4)
    for _ in range(FEED_BEHIND_HEARTBEATS - 1):
        shown.frame(heartbeat(2))
    assert not shown.fenced()
    shown.frame(heartbeat(2))
    assert shown.fenced()
    shown.tick(SNAPSHOT_BACKOFF_MAX_S)
    shown.chunk(chunk(2, 3), now=SNAPSHOT_BACKOFF_MAX_S)
    assert shown.blocks == {3}
    assert shown.state() is State.LIVE


def test_numbers_heard_before_a_request_cannot_exceed_its_answer() -> None:
    """One absurd number does not fence a replica for ever."""
    shown = live(4)
    shown.frame(heartbeat(2**50))
    shown.frame(data(2**50 + 1))
    shown.tick(SNAPSHOT_BACKOFF_MAX_S)
    shown.chunk(chunk(5, 1), now=SNAPSHOT_BACKOFF_MAX_S)
    assert shown.state() is State.LIVE


def test_a_block_size_that_contradicts_the_metadata_is_a_loud_state() -> None:
    """Such a replica has no blocks and no credit until its frames agree again."""
    shown = live(4)
    shown.frame(data(5, block_size=32))
    shown.frame(data(6, block_size=32))
    assert shown.state() is State.MISMATCHED
    assert shown.fenced()
    assert shown.alive()
    assert shown.blocks == set()
    assert shown.feed.counters["mismatched_frames"] == 2
    shown.frame(heartbeat(7), now=1.0)
    shown.chunk(chunk(7, 3, block_size=16), now=1.0)
    assert shown.state() is State.LIVE


def test_a_snapshot_with_another_block_size_is_a_mismatch_too() -> None:
    """Whoever says it first."""
    shown = joining()
    shown.chunk(chunk(4, 1, block_size=32))
    assert shown.state() is State.MISMATCHED


def test_what_the_index_could_not_hold_is_asked_for_again_after_a_pause() -> None:
    """The feed trusts nothing that was applied in part."""
    shown = live(4)
    shown.obey(shown.feed.on_overflow(0.0))
    assert shown.state() is State.GAP
    assert shown.blocks == set()
    assert len(shown.requests) == 1
    shown.tick(SNAPSHOT_BACKOFF_MAX_S)
    assert len(shown.requests) == 2


def test_the_publishers_clock_decides_nothing() -> None:
    """Any `ts` gives the same state; only the router's own clock counts."""
    for ts in (-1e9, 0.0, 1e12):
        shown = live(4)
        shown.frame(data(5)._replace(ts=ts))
        assert shown.state() is State.LIVE


def test_every_state_can_be_left_and_every_transition_is_counted() -> None:
    """The table has no dead end; counters carry both states and the cause."""
    for state in State:
        assert any(state in moves and moves[state] is not state for moves in TRANSITIONS.values())
    shown = live(4)
    assert shown.feed.counters["joining_to_live_synced"] == 1
    assert repr(shown.feed) == "<Feed live i1 applied=4 known=4>"
    assert shown.feed.silence_s(1.5) == 1.5


def test_an_event_outside_the_table_and_a_contradictory_state_are_bugs() -> None:
    """Invariants speak up."""
    shown = live(4)
    with pytest.raises(KvistBug, match="cannot happen"):
        shown.feed._enter(Event.FAILED)
    shown.feed._known = 9
    with pytest.raises(KvistBug, match="live means"):
        shown.feed.check_integrity()
