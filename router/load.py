"""What each replica has to do: its own gauge, and what this ingress has sent it since.

A reservation is made with the choice and released exactly once, whatever becomes of the request. It carries the prompt
tokens the replica has to compute, and the blocks it computes first: a sibling that comes a moment later finds them
here, before any event tells of them. (Should two requests claim one block, the first to end takes it from the set: it
is a hint, and may be missing, but never stays.)
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from router.errors import KvistBug
from router.limits import LOAD_SETTLE_S, MAX_RESERVATIONS, OVERDUE_S, RESERVATION_TTL_S, SEEN_S
from router.rates import Arrivals, Slowness
from router.step_rule import FIRST_COME, StepRule, left_of
from router.wire import Load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.cost import Standing

MAX_ENDED: Final = 256  # within LOAD_SETTLE_S: more are one crowd like another
IDLE: Final = Load(0, 0, 0, 0, 0)


class Reservation(msgspec.Struct):
    """One request on its way. `first_hashes` are the blocks that no earlier request on the replica provides;
    `shown_cached_tokens` what was cached at most, of which `predicted_cached_tokens` were expected. Of others,
    `ahead_tokens` should be computed before it is done; `overtaken_tokens` were, though they came later. `running`
    decodes were there when it came; its first token was expected after `expected_s`."""

    replica: str
    block_size: int
    prompt_tokens: int
    predicted_cached_tokens: int
    ahead_tokens: int
    hashes: Sequence[int]
    first_hashes: Sequence[int]
    made_at: float
    prefilling: bool = True
    shown_cached_tokens: int = 0
    session: str = ""
    running: int = 0
    expected_s: float = 0.0
    overtaken_tokens: int = 0
    first_at: float = 0.0

    @property
    def uncached_tokens(self) -> int:
        return self.prompt_tokens - self.predicted_cached_tokens


class ReplicaLoad:
    """The load of one replica as this ingress knows it.

    `backlog_tokens` are prompt tokens to compute before a new request: the gauge and what it cannot know yet, or all of
    our own. `running` are the requests that share the replica's steps. Both are kept ready for the choice to read.
    """

    __slots__ = (
        "arrivals", "backlog_tokens", "ended_at", "fresh", "fresh_tokens", "gauge", "gauged_at", "gone", "inflight",
        "inflight_blocks", "last_first_at", "overdue_s", "prefill_tokens", "prefilling", "rule", "running", "slowness",
        "standing",
    )  # fmt: skip

    def __init__(self, rule: StepRule = FIRST_COME) -> None:
        self.rule = rule
        self.arrivals = Arrivals()
        self.slowness = Slowness()
        self.prefilling: dict[int, Reservation] = {}  # own requests without a first token, oldest first
        self.last_first_at = 0.0  # when the last of them got one
        self.overdue_s = 0.0  # by which the oldest of them is late
        self.standing: Standing | None = None  # kept ready while nothing changes it
        self.gauge = IDLE
        self.gauged_at = 0.0
        self.gone = 0  # own requests that have ended, and may still be counted there
        self.ended_at: deque[float] = deque(maxlen=MAX_ENDED)  # of those that a gauge on its way may count
        self.inflight: dict[int, Reservation] = {}
        self.inflight_blocks: set[int] = set()
        self.prefill_tokens = 0  # of own requests without a first token
        self.fresh: dict[int, int] = {}  # reservation → its tokens that the gauge may not count yet
        self.fresh_tokens = 0

        self.backlog_tokens = 0
        self.running = 0

    def refresh(self) -> None:
        """Bring the two sums up to date, after any change."""
        self.standing = None
        self.backlog_tokens = max(self.gauge.backlog_tokens + self.fresh_tokens, self.prefill_tokens)
        self.running = max(self.gauged + len(self.fresh), len(self.inflight))

    def left_tokens(self, tokens_per_s: float, now: float) -> int:
        """What is left of the backlog by now: what is our own has been worked on since it came, at the learnt rate.

        A gauge that counts prompts whole until their first token is an upper bound."""
        gauged = self.gauge.backlog_tokens + self.fresh_tokens
        if not self.prefilling:
            return gauged if self.has_foreign else 0
        oldest = next(iter(self.prefilling.values()))
        done = (now - max(oldest.made_at, self.last_first_at)) * tokens_per_s / self.slowness.factor
        own = max(self.prefill_tokens - int(done), len(self.prefilling))
        foreign = max(0, gauged - self.prefill_tokens) if self.has_foreign else 0
        return min(max(gauged, len(self.prefilling)), own + foreign)

    @property
    def gauged(self) -> int:
        """Requests that the gauge counts, without those whose end it could not know: a session's next turn often comes
        before the gauge does, and must not find its own last turn in its way."""
        return max(self.gauge.running + self.gauge.waiting - self.gone, 0)

    @property
    def has_foreign(self) -> bool:
        """Whether the replica has more requests than we sent it."""
        return self.gauged > len(self.inflight) - len(self.fresh)

    def ahead(self, backlog_tokens: int) -> list[int]:
        """The prompts that `backlog_tokens` are left of, oldest first."""
        return left_of([one.uncached_tokens for one in self.prefilling.values()], backlog_tokens, self.rule)

    def on_time(self, now: float) -> None:
        """Let time pass for what is learnt of it."""
        self.standing = None
        self.arrivals.refresh(now)
        self.slowness.refresh(now)
        self.overdue_s = 0.0
        if self.prefilling:
            oldest = next(iter(self.prefilling.values()))
            self.overdue_s = max(0.0, now - oldest.made_at - 2 * oldest.expected_s - OVERDUE_S)


class Loads:
    """Loads of all replicas and all open reservations. At most MAX_RESERVATIONS, none older than RESERVATION_TTL_S."""

    def __init__(self) -> None:
        self._replicas: dict[str, ReplicaLoad] = {}
        self._open: dict[int, Reservation] = {}  # oldest first
        self._next = 1
        self.lost = 0
        self._ours = self._all = 0.0  # requests on all replicas, averaged over SEEN_S
        self._seen_at = 0.0

    def __repr__(self) -> str:
        return f"<Loads replicas={len(self._replicas)} open={len(self._open)} lost={self.lost}>"

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, replica: str) -> ReplicaLoad:
        return self._replicas[replica]

    def add(self, replica: str, rule: StepRule = FIRST_COME) -> None:
        """Know a replica; one that is known keeps its reservations."""
        self._replicas.setdefault(replica, ReplicaLoad()).rule = rule

    def drop(self, replica: str) -> None:
        """Forget a replica. Its open reservations stay until they are released."""
        self._replicas.pop(replica, None)

    def on_gauge(self, replica: str, gauge: Load, now: float) -> None:
        """Take the replica's own account. O(requests it now counts)."""
        load = self._replicas[replica]
        while load.ended_at and load.ended_at[0] < now - LOAD_SETTLE_S:
            load.ended_at.popleft()
        load.gauge, load.gauged_at, load.gone = gauge, now, len(load.ended_at)
        while load.fresh:
            oldest = next(iter(load.fresh))
            if load.inflight[oldest].made_at > now - LOAD_SETTLE_S:
                break
            load.fresh_tokens -= load.fresh.pop(oldest)
        load.refresh()

    def reserve(self, reservation: Reservation) -> int:
        """Open a reservation on a known replica; the token that releases it, once. O(its first blocks)."""
        while len(self._open) >= MAX_RESERVATIONS:
            self._lose(next(iter(self._open)))
        token, self._next = self._next, self._next + 1
        self._open[token] = reservation
        self._attach(token, reservation)
        return token

    def find(self, token: int) -> Reservation | None:
        """The open reservation, if it is still open."""
        return self._open.get(token)

    def move(self, token: int, replacement: Reservation) -> None:
        """Put an open reservation on another known replica, under the same token and age."""
        self._detach(token, self._open[token])
        self._open[token] = replacement
        self._attach(token, replacement)

    def first_token(self, token: int, now: float) -> Reservation | None:
        """Its prompt is computed: it is no backlog any more. None when that was known, or the token is not open.

        O(own prompts before it on that replica)."""
        reservation = self._open.get(token)
        if reservation is None or not reservation.prefilling:
            return None
        load = self._replicas.get(reservation.replica)
        if load is not None and token in load.inflight:
            self._settle(load, token, reservation)
            load.last_first_at = now
            for other, waiting in load.prefilling.items():
                if other < token:
                    waiting.overtaken_tokens += reservation.uncached_tokens
        reservation.prefilling = False
        reservation.first_at = now
        return reservation

    def release(self, token: int) -> Reservation | None:
        """Close a reservation. Safe to call again: then, and for unknown tokens, None."""
        reservation = self._open.pop(token, None)
        if reservation is not None:
            self._detach(token, reservation)
        return reservation

    def ended(self, replica: str, now: float) -> None:
        """A request of ours on a replica has ended just now."""
        load = self._replicas.get(replica)
        if load is not None:
            load.ended_at.append(now)

    def sweep(self, now: float) -> None:
        """Release what was never finished, and let time pass. O(replicas and what is released)."""
        for load in self._replicas.values():
            load.on_time(now)
        self._note_part(now)
        while self._open:
            oldest = next(iter(self._open))
            if self._open[oldest].made_at > now - RESERVATION_TTL_S:
                break
            self._lose(oldest)

    def check_integrity(self) -> None:
        """Raise `KvistBug` when a sum is not the sum of its open reservations. O(open reservations)."""
        for name, load in self._replicas.items():
            mine = {token: one for token, one in self._open.items() if one.replica == name and token in load.inflight}
            blocks: set[int] = set().union(*(one.first_hashes for one in mine.values()))
            if (
                mine != load.inflight
                or load.prefilling != {token: one for token, one in mine.items() if one.prefilling}
                or load.prefill_tokens != sum(one.uncached_tokens for one in load.prefilling.values())
                or load.fresh_tokens != sum(load.fresh.values())
                or not load.fresh.keys() <= mine.keys()
                or not load.inflight_blocks <= blocks
            ):
                raise KvistBug(f"{name}: the load is not the sum of its reservations")

    @property
    def our_part(self) -> float:
        """Of the requests on all replicas, those that this ingress sent them: 1.0 where it is the only one."""
        return self._ours / self._all if self._all else 1.0

    def _note_part(self, now: float) -> None:
        ours = sum([len(load.inflight) for load in self._replicas.values()])
        gauged = sum([load.gauged + len(load.fresh) for load in self._replicas.values()])
        faded = math.exp((self._seen_at - now) / SEEN_S)
        self._seen_at = now
        self._ours += (1.0 - faded) * (ours - self._ours)
        self._all += (1.0 - faded) * (max(gauged, ours) - self._all)

    def _lose(self, token: int) -> None:
        self.lost += 1
        self.release(token)

    def _attach(self, token: int, reservation: Reservation) -> None:
        load = self._replicas[reservation.replica]
        load.inflight[token] = reservation
        load.inflight_blocks.update(reservation.first_hashes)
        if reservation.prefilling:
            load.prefilling[token] = reservation
            load.prefill_tokens += reservation.uncached_tokens
            load.fresh[token] = reservation.uncached_tokens
            load.fresh_tokens += reservation.uncached_tokens
        load.refresh()

    def _detach(self, token: int, reservation: Reservation) -> None:
        load = self._replicas.get(reservation.replica)
        if load is None or load.inflight.pop(token, None) is None:
            return  # the replica left, and maybe came back without this request
        load.inflight_blocks.difference_update(reservation.first_hashes)
        load.gone += reservation.made_at < load.gauged_at
        if reservation.prefilling:
            self._settle(load, token, reservation)
        load.refresh()

    @staticmethod
    def _settle(load: ReplicaLoad, token: int, reservation: Reservation) -> None:
        load.prefilling.pop(token, None)
        load.prefill_tokens -= reservation.uncached_tokens
        load.fresh_tokens -= load.fresh.pop(token, 0)
        load.refresh()
