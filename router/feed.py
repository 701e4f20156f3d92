"""One replica's event stream, kept exact: every loss is noticed, and repaired from a snapshot.

Frames come over a channel that may drop, repeat and reorder; snapshots are asked for and may never come. The feed says
what to do with the index, and whether what the index shows of this replica may be believed (`fenced`).

Rules that the table cannot say:
- Only data frames carry operations, numbered without holes; they are applied in order or not at all.
- The highest number heard, heartbeats included, is the truth about what exists: fewer applied is a loss.
- A snapshot answers one request (its nonce). It was made after the request was sent, so it covers every number heard
  before, and its incarnation is the one that lives now, whatever late frames of another one say.
- Late frames of a retired incarnation are ignored, unless the current one has fallen silent: then they are the only
  hint of who lives, and the snapshot decides.
- Silence ends the lease but forgets nothing: if the stream goes on where it stopped, nothing was lost.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from router.errors import KvistBug
from router.limits import (
    FEED_BEHIND_HEARTBEATS,
    FEED_BUFFER_FRAMES,
    FEED_BUFFER_HASHES,
    FEED_SETTLED_S,
    LEASE_S,
    RETIRED_INCARNATIONS,
    SNAPSHOT_BACKOFF_MAX_S,
    SNAPSHOT_BACKOFF_S,
    SNAPSHOT_TIMEOUT_S,
)
from router.wire import Cleared

if TYPE_CHECKING:
    from router.wire import Frame, Op, SnapshotChunk, Stored


class State(Enum):
    """Where a replica's stream stands. Only LIVE is believed; only EXPIRED is not routable."""

    JOINING = "joining"  # nothing of this incarnation applied yet; a snapshot is asked for or about to be
    LIVE = "live"  # every frame heard of is applied
    GAP = "gap"  # frames are missing; waiting for the back-off to pass
    RESYNC = "resync"  # frames are missing; a snapshot is asked for
    MISMATCHED = "mismatched"  # the stream's block size is not the one in the replica's own metadata
    EXPIRED = "expired"  # nothing heard for LEASE_S


class Event(Enum):
    """What may happen to a stream."""

    ASKED = "asked"  # a snapshot request goes out
    SYNCED = "synced"  # a whole snapshot came
    FAILED = "failed"  # it did not come in time, was inconsistent, or the buffer ran over
    LOSS = "loss"  # a number heard of is not applied, or what was applied cannot be trusted
    HEALED = "healed"  # late frames closed the hole
    RESTART = "restart"  # another incarnation speaks, or the block size is right again
    MISMATCH = "mismatch"
    SILENCE = "silence"


_J, _L, _G, _R, _M, _X = State.JOINING, State.LIVE, State.GAP, State.RESYNC, State.MISMATCHED, State.EXPIRED

TRANSITIONS: Final[dict[Event, dict[State, State]]] = {
    Event.ASKED: {_J: _J, _G: _R},
    Event.SYNCED: {_J: _L, _R: _L},
    Event.FAILED: {_J: _J, _R: _G},
    Event.LOSS: {_L: _G, _G: _G, _R: _G, _X: _G},
    Event.HEALED: {_G: _L, _R: _L, _X: _L},
    Event.RESTART: {_J: _J, _L: _J, _G: _J, _R: _J, _M: _J, _X: _J},
    Event.MISMATCH: {_J: _M, _L: _M, _G: _M, _R: _M, _X: _M},
    Event.SILENCE: {_J: _X, _L: _X, _G: _X, _R: _X, _M: _X},
}


class Apply(NamedTuple):
    """Perform these operations on the replica's blocks, in order."""

    ops: tuple[Op, ...]


class Reset(NamedTuple):
    """Forget all blocks of the replica."""


class RequestSnapshot(NamedTuple):
    """Ask the replica for its resident set; the answer must repeat the nonce."""

    nonce: int


FeedAction = Apply | Reset | RequestSnapshot


class Feed:
    """The stream of one replica. Sans-IO: inputs carry `now` in monotonic seconds, outputs are actions in order.

    Bounds: FEED_BUFFER_FRAMES and FEED_BUFFER_HASHES held back, one snapshot of `max_blocks`, RETIRED_INCARNATIONS.
    The caller calls `tick` at once, then at least every 100 ms, and after it has handled whatever has arrived.
    """

    def __init__(self, *, incarnation: str, block_size: int, max_blocks: int, now: float, first_nonce: int = 0) -> None:
        self.incarnation = incarnation
        self.block_size = block_size
        self.counters: Counter[str] = Counter()
        self._state = State.JOINING
        self._max_blocks = max_blocks
        self._retired: dict[str, None] = {}
        self._heard_at = now
        self._live_since = now
        self._applied: int | None = None  # number of the last data frame applied; None: nothing to build on
        self._known = -1  # highest number heard of
        self._known_since_asked = -1
        self._behind = 0
        self._buffer: dict[int, tuple[Op, ...]] = {}
        self._buffered_hashes = 0
        self._next_nonce = first_nonce
        self._nonce: int | None = None  # of the outstanding request
        self._parts: dict[int, SnapshotChunk] = {}
        self._part_hashes = 0
        self._deadline = now
        self._attempts = 0
        self._not_before = now

    def __repr__(self) -> str:
        return f"<Feed {self._state.value} {self.incarnation} applied={self._applied} known={self._known}>"

    @property
    def state(self) -> State:
        """For status and metrics; decisions need only `fenced` and `alive`."""
        return self._state

    @property
    def fenced(self) -> bool:
        """True while the index may show what the replica does not hold, or miss what it does."""
        return self._state is not State.LIVE

    @property
    def alive(self) -> bool:
        """False once the lease has ended."""
        return self._state is not State.EXPIRED

    @property
    def behind(self) -> int:
        """Data frames heard of and not applied."""
        return self._known - (-1 if self._applied is None else self._applied)

    def silence_s(self, now: float) -> float:
        """Time since the last frame."""
        return max(0.0, now - self._heard_at)

    def on_frame(self, frame: Frame, now: float) -> list[FeedAction]:
        """Take one frame. O(its hashes) plus what it releases from the buffer."""
        actions: list[FeedAction] = []
        if frame.incarnation != self.incarnation:
            if frame.incarnation in self._retired and self.alive:
                self.counters["late_incarnation_frames"] += 1
                return actions
            actions += self._restart(frame.incarnation)
        self._heard_at = now
        if frame.block_size != self.block_size:
            return actions + self._mismatch()
        if self._state is State.MISMATCHED:
            self._enter(Event.RESTART)
        if frame.ops and self._state is State.LIVE and frame.seq == self._known + 1:
            return self._apply_next(frame)  # nearly every frame: nothing is buffered, nothing is asked
        if frame.ops:
            self._take_data(frame, now)
        else:
            self._take_heartbeat(frame.seq)
        return actions + self._settle(now)

    def on_chunk(self, chunk: SnapshotChunk, nonce: int, now: float) -> list[FeedAction]:
        """Take one part of a snapshot. Parts of any request but the outstanding one are ignored."""
        if nonce != self._nonce:
            self.counters["late_chunks"] += 1
            return []
        actions: list[FeedAction] = []
        if chunk.incarnation != self.incarnation and not self._parts:
            actions += self._restart(chunk.incarnation)
            self._nonce = nonce
        if chunk.block_size != self.block_size:
            return actions + self._mismatch()
        if not self._accept(chunk):
            self._fail(now)
            return actions
        self._deadline = now + SNAPSHOT_TIMEOUT_S
        if len(self._parts) == chunk.count:
            actions += self._install(now)
        return actions

    def on_overflow(self, now: float) -> list[FeedAction]:
        """What the feed had applied exceeds the replica's bound in the index: trust nothing of it, ask again later."""
        self.counters["index_overflows"] += 1
        self._forget()
        self._attempts += 1
        self._not_before = now + self._backoff_s()
        self._enter(Event.LOSS)
        return [Reset()]

    def tick(self, now: float) -> list[FeedAction]:
        """Let time pass: end the lease, give up on a snapshot, ask when the back-off has passed."""
        if self._state is State.EXPIRED:
            return []
        if now - self._heard_at > LEASE_S:
            self._drop_request()
            self._drop_buffer()
            self._enter(Event.SILENCE)
            return []
        if self._state is State.LIVE and now - self._live_since >= FEED_SETTLED_S:
            self._attempts = 0
        if self._nonce is not None and now >= self._deadline:
            self.counters["snapshot_timeouts"] += 1
            self._fail(now)
        return self._ask_when_due(now)

    def check_integrity(self) -> None:
        """Raise `KvistBug` when the state contradicts itself. O(buffered frames)."""
        live, asked = self._state is State.LIVE, self._nonce is not None
        rules = {
            "live means everything heard of is applied": not live or (self._applied == self._known and not asked),
            "only joining and resync have a request": not asked or self._state in (State.JOINING, State.RESYNC),
            "resync has a request": asked or self._state is not State.RESYNC,
            "parts belong to a request": asked or not self._parts,
            "the buffer holds what waits": self._applied is None or all(seq > self._applied for seq in self._buffer),
            "the buffer is bounded": len(self._buffer) <= FEED_BUFFER_FRAMES,
            "the buffer is counted": self._buffered_hashes == sum(map(_hashes_in, self._buffer.values())),
            "retired incarnations are bounded, others": len(self._retired) <= RETIRED_INCARNATIONS
            and self.incarnation not in self._retired,
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise KvistBug(f"{self!r}: {'; '.join(broken)}")

    def _apply_next(self, frame: Frame) -> list[FeedAction]:
        self._known = self._applied = frame.seq
        self._behind = 0
        self.counters["applied_frames"] += 1
        return [Apply(frame.ops)]

    def _take_data(self, frame: Frame, now: float) -> None:
        self._hear(frame.seq)
        self._behind = 0
        if frame.seq in self._buffer or (self._applied is not None and frame.seq <= self._applied):
            self.counters["duplicate_frames"] += 1
            return
        self._buffer[frame.seq] = frame.ops
        self._buffered_hashes += _hashes_in(frame.ops)
        if self._applied is not None and frame.seq == self._applied + 1:
            return  # released at once
        if len(self._buffer) > FEED_BUFFER_FRAMES or self._buffered_hashes > FEED_BUFFER_HASHES:
            self.counters["buffer_overflows"] += 1
            self._drop_buffer()
            if self._nonce is not None:
                self._fail(now)

    def _take_heartbeat(self, seq: int) -> None:
        if self._applied is None or seq >= self._applied:
            self._behind = 0
            self._hear(seq)
            return
        self.counters["behind_heartbeats"] += 1
        self._behind += 1
        if self._behind >= FEED_BEHIND_HEARTBEATS:  # numbers went back under the same incarnation
            self._forget()
            self._hear(seq)
            self._enter(Event.LOSS)

    def _hear(self, seq: int) -> None:
        self._known = max(self._known, seq)
        self._known_since_asked = max(self._known_since_asked, seq)

    def _settle(self, now: float) -> list[FeedAction]:
        """Release what is in order, then let the state follow from what is applied and what is known."""
        actions: list[FeedAction] = []
        while self._applied is not None and (ops := self._buffer.pop(self._applied + 1, None)) is not None:
            self._buffered_hashes -= _hashes_in(ops)
            self._applied += 1
            self.counters["applied_frames"] += 1
            actions.append(Apply(ops))
        if self._applied is not None and self._known <= self._applied:
            if self._state is not State.LIVE:
                self._drop_request()
                self._enter(Event.HEALED)
                self._live_since = now
        elif self._state in (State.LIVE, State.EXPIRED):
            self._enter(Event.LOSS)
        return actions + self._ask_when_due(now)

    def _ask_when_due(self, now: float) -> list[FeedAction]:
        if self._state not in (State.JOINING, State.GAP) or self._nonce is not None or now < self._not_before:
            return []
        self._nonce = self._next_nonce
        self._next_nonce += 1
        self._known_since_asked = -1
        self._deadline = now + SNAPSHOT_TIMEOUT_S
        self._attempts += 1
        self._not_before = now + self._backoff_s()
        self._enter(Event.ASKED)
        return [RequestSnapshot(self._nonce)]

    def _accept(self, chunk: SnapshotChunk) -> bool:
        """Keep a part; false when it contradicts the others or the whole exceeds its bound."""
        for first in self._parts.values():
            if (first.incarnation, first.seq, first.count) != (chunk.incarnation, chunk.seq, chunk.count):
                self.counters["inconsistent_snapshots"] += 1
                return False
            break
        if chunk.index in self._parts:
            self.counters["duplicate_chunks"] += 1
            return True
        self._parts[chunk.index] = chunk
        self._part_hashes += _hashes_in(chunk.blocks)
        if self._part_hashes > self._max_blocks:
            self.counters["snapshot_overflows"] += 1
            return False
        return True

    def _install(self, now: float) -> list[FeedAction]:
        parts = [self._parts[index] for index in range(len(self._parts))]
        ops = tuple(run for part in parts for run in part.blocks)
        self._applied = parts[0].seq
        self._known = max(self._applied, self._known_since_asked)
        for seq in [seq for seq in self._buffer if not self._applied < seq <= self._known]:
            self._buffered_hashes -= _hashes_in(self._buffer.pop(seq))
        self._behind = 0
        self._drop_request()
        self._enter(Event.SYNCED)
        self._live_since = now
        return [Reset(), Apply(ops), *self._settle(now)]

    def _fail(self, now: float) -> None:
        self._drop_request()
        self._not_before = now + self._backoff_s()
        self._enter(Event.FAILED)

    def _restart(self, incarnation: str) -> list[FeedAction]:
        self._retired[self.incarnation] = None
        self._retired.pop(incarnation, None)
        if len(self._retired) > RETIRED_INCARNATIONS:
            del self._retired[next(iter(self._retired))]
        self.incarnation = incarnation
        self._forget()
        self._enter(Event.RESTART)
        return [Reset()]

    def _mismatch(self) -> list[FeedAction]:
        self.counters["mismatched_frames"] += 1
        if self._state is State.MISMATCHED:
            return []
        self._forget()
        self._enter(Event.MISMATCH)
        return [Reset()]

    def _forget(self) -> None:
        self._applied = None
        self._known = self._known_since_asked = -1
        self._behind = 0
        self._drop_request()
        self._drop_buffer()

    def _drop_request(self) -> None:
        self._nonce = None
        self._parts.clear()
        self._part_hashes = 0

    def _drop_buffer(self) -> None:
        self._buffer.clear()
        self._buffered_hashes = 0

    def _backoff_s(self) -> float:
        return min(SNAPSHOT_BACKOFF_MAX_S, SNAPSHOT_BACKOFF_S * 2.0 ** min(self._attempts, 16))

    def _enter(self, event: Event) -> None:
        after = TRANSITIONS[event].get(self._state)
        if after is None:
            raise KvistBug(f"{self!r}: {event.value} cannot happen here")
        self.counters[f"{self._state.value}_to_{after.value}_{event.value}"] += 1
        self._state = after


def _hashes_in(ops: tuple[Op, ...] | tuple[Stored, ...]) -> int:
    return sum([len(op.hashes) for op in ops if not isinstance(op, Cleared)])
