"""Negative controls: parts with one guard broken each. A simulation that does not object to them proves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from router.feed import Feed, FeedAction
from router.fleet import Fleet
from router.policy import LeastTime, Score
from tests.simulation.world import Parts
from workers.announcer import Announcer
from workers.relay import Relay
from workers.residency import PoolKey, Residency

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.fleet import Action, ReplicaInfo
    from router.policy import Candidate, Question
    from router.wire import Frame, Op, SnapshotChunk


class Uncounted(Residency):
    """Any number of copies of a block is one."""

    def _copies(self, key: PoolKey, engine_hash: int) -> int:
        return min(1, super()._copies(key, engine_hash))


class RelayWithoutCounts(Relay):
    def __init__(self, *, model: str, block_size: int | None = None) -> None:
        super().__init__(model=model, block_size=block_size)
        self._residency = Uncounted()


class RelayThatKeepsSilent(Relay):
    """Its engine's cache is reset, and it says nothing."""

    def reset(self, known: int) -> tuple[Op, ...]:
        return ()


class SilentAnnouncer(Announcer):
    """Its heartbeats are never due, after the first."""

    def _frame(self, ops: tuple[Op, ...], *, now: float, ts: float) -> bytes:
        data = super()._frame(ops, now=now, ts=ts)
        self.heartbeat_at = float("inf")
        return data


class UnfencedFeed(Feed):
    @property
    def fenced(self) -> bool:
        return False


class OneIncarnationFeed(Feed):
    """Whoever speaks, it is the one it knows."""

    def on_frame(self, frame: Frame, now: float) -> list[FeedAction]:
        return super().on_frame(frame._replace(incarnation=self.incarnation), now)

    def on_chunk(self, chunk: SnapshotChunk, nonce: int, now: float) -> list[FeedAction]:
        return super().on_chunk(chunk._replace(incarnation=self.incarnation), nonce, now)


class EternalFeed(Feed):
    """Silence means nothing."""

    def tick(self, now: float) -> list[FeedAction]:
        self._heard_at = now
        return super().tick(now)


def fleet_with(feed: type[Feed]) -> type[Fleet]:
    """A fleet whose feeds are of this class."""

    class Broken(Fleet):
        def join(self, info: ReplicaInfo, now: float) -> list[Action]:
            actions = super().join(info, now)
            member = self._members[info.replica]
            member.feed.__class__ = feed
            member.alive, member.believed = member.feed.alive, not member.feed.fenced
            return actions

    return Broken


class NoFloor(LeastTime, frozen=True):
    """The last token may come from the cache too."""

    def rank(self, candidates: Iterable[Candidate], question: Question) -> tuple[Score, ...]:
        return super().rank(candidates, question._replace(prompt_tokens=question.prompt_tokens + 1))


class Forgetful(Fleet):
    """Every fiftieth request is never finished."""

    def finish(self, reservation: int, now: float) -> None:
        if reservation % 50:
            super().finish(reservation, now)


class Control(NamedTuple):
    """Parts, and words of the invariants that must object."""

    parts: Parts
    caught_by: str


CONTROLS: Final = {
    "no reference counts in the relay": Control(Parts(relay=RelayWithoutCounts), "than the pool holds|copies differ"),
    "a reset is not announced": Control(Parts(relay=RelayThatKeepsSilent), "predicted by a router that knew all"),
    "no heartbeats": Control(Parts(announcer=SilentAnnouncer), "after the last fault, not true"),
    "the fence is ignored": Control(Parts(fleet=fleet_with(UnfencedFeed)), "is believed without frame"),
    "incarnations are not told apart": Control(
        Parts(fleet=fleet_with(OneIncarnationFeed)), "is believed after a newer incarnation was heard"
    ),
    "the lease never ends": Control(Parts(fleet=fleet_with(EternalFeed)), "is routable, silent"),
    "no last-token floor": Control(Parts(fleet=lambda: Fleet(policy=NoFloor())), "the last token is always computed"),
    "some reservations are never released": Control(Parts(fleet=Forgetful), "keeps reservations of requests"),
}
