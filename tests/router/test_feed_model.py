"""The feed against the perfect stream, under any interleaving of loss, repetition, disorder, restarts and time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.feed import Feed, State
from router.wire import Cleared, Frame, Op, Removed, SnapshotChunk, Stored
from tests.router.feed_support import Shown, applied, chunk, data, heartbeat


class FeedAgainstPerfectStream(RuleBasedStateMachine):
    """Any interleaving of drop, duplicate, reorder, restart, clear and lost or late snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.incarnation, self.seq = "i0", -1
        self.blocks: set[int] = set()
        self.history: dict[tuple[str, int], set[int]] = {("i0", -1): set()}
        self.next_block = 0
        self.frames: list[Frame] = []
        self.asked: list[int] = []
        self.answers: list[tuple[SnapshotChunk, int]] = []
        self.shown = Shown(Feed(incarnation="i0", block_size=16, max_blocks=10_000, now=0.0))

    def publish(self, *ops: Op) -> None:
        self.seq += 1
        self.blocks = applied(self.blocks, ops)
        self.history[self.incarnation, self.seq] = set(self.blocks)
        self.frames.append(data(self.seq, *ops, incarnation=self.incarnation))

    def collect(self) -> None:
        self.asked += self.shown.requests
        self.shown.requests.clear()

    @rule(count=st.integers(1, 3))
    def store(self, count: int) -> None:
        new = tuple(range(self.next_block, self.next_block + count))
        self.next_block += count
        self.publish(Stored("gpu", new))

    @rule()
    def evict_and_store(self) -> None:
        if self.blocks:
            block = min(self.blocks)
            self.publish(Removed("gpu", (block,)), Stored("gpu", (self.next_block,)))
            self.next_block += 1

    @rule()
    def clear(self) -> None:
        self.publish(Cleared())

    @rule()
    def beat(self) -> None:
        self.frames.append(heartbeat(self.seq, self.incarnation))

    @rule()
    def restart(self) -> None:
        self.incarnation = f"i{int(self.incarnation[1:]) + 1}"
        self.seq, self.blocks = -1, set()
        self.history[self.incarnation, -1] = set()
        self.asked.clear()  # the process that was asked is gone
        self.frames.append(heartbeat(-1, self.incarnation))

    @rule(count=st.integers(1, 4))
    def deliver_in_order(self, count: int) -> None:
        for _ in range(min(count, len(self.frames))):
            self.shown.frame(self.frames.pop(0), self.now)

    @rule(source=st.data())
    def deliver_out_of_order(self, source: st.DataObject) -> None:
        if self.frames:
            self.shown.frame(self.frames.pop(source.draw(st.integers(0, len(self.frames) - 1))), self.now)

    @rule(source=st.data())
    def deliver_and_keep_a_copy(self, source: st.DataObject) -> None:
        if self.frames:
            self.shown.frame(source.draw(st.sampled_from(self.frames)), self.now)

    @rule(count=st.integers(1, 4))
    def drop(self, count: int) -> None:
        del self.frames[:count]

    @rule(parts=st.integers(1, 3))
    def answer(self, parts: int) -> None:
        self.collect()
        if self.asked:
            self.answers += self.snapshot(self.asked.pop(0), parts)

    def snapshot(self, nonce: int, count: int) -> list[tuple[SnapshotChunk, int]]:
        held = sorted(self.blocks)
        parts = [
            chunk(self.seq, *held[i::count], index=i, count=count, incarnation=self.incarnation) for i in range(count)
        ]
        return [(part, nonce) for part in parts]

    @rule(source=st.data())
    def deliver_an_answer(self, source: st.DataObject) -> None:
        if self.answers:
            part, nonce = self.answers.pop(source.draw(st.integers(0, len(self.answers) - 1)))
            self.shown.chunk(part, nonce, self.now)

    @rule()
    def lose_requests(self) -> None:
        self.collect()
        self.asked.clear()

    @rule()
    def lose_an_answer(self) -> None:
        del self.answers[:1]

    @rule(step=st.sampled_from([0.0, 0.05, 0.3, 1.1, 2.5]))
    def wait(self, step: float) -> None:
        self.now += step
        self.shown.tick(self.now)

    @invariant()
    def believes_only_what_was_true_at_the_frame_it_has_applied(self) -> None:
        feed = self.shown.feed
        feed.check_integrity()
        if not feed.fenced:
            assert feed._applied is not None
            assert self.shown.blocks == self.history[feed.incarnation, feed._applied]

    def teardown(self) -> None:
        """After faults stop, two seconds are enough for the exact state."""
        for frame in self.frames:
            self.shown.frame(frame, self.now)
        self.collect()
        self.asked.clear()
        for _ in range(19):
            self.now += 0.1
            self.shown.frame(heartbeat(self.seq, self.incarnation), self.now)
            self.shown.tick(self.now)
            for nonce in self.shown.requests:
                for part, _ in self.snapshot(nonce, 2):
                    self.shown.chunk(part, nonce, self.now)
            self.shown.requests.clear()
        assert self.shown.state() is State.LIVE
        assert self.shown.feed.incarnation == self.incarnation
        assert self.shown.blocks == self.blocks


TestFeedAgainstPerfectStream = FeedAgainstPerfectStream.TestCase
TestFeedAgainstPerfectStream.settings = settings(deadline=None, max_examples=250, stateful_step_count=50)
