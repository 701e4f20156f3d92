"""A feed with the replica it shows, for the tests of its state machine and of its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.feed import Apply, Feed, RequestSnapshot, Reset, State
from router.wire import Cleared, Frame, Load, Op, Removed, SnapshotChunk, Stored

if TYPE_CHECKING:
    from router.feed import FeedAction

LOAD = Load(0, 0, 0, 9, 9)


def data(seq: int, *ops: Op, incarnation: str = "i1", block_size: int = 16) -> Frame:
    return Frame("r", incarnation, seq, 0.0, ops or (Stored("gpu", (1_000 + seq,)),), LOAD, block_size)


def heartbeat(seq: int, incarnation: str = "i1") -> Frame:
    return Frame("r", incarnation, seq, 0.0, (), LOAD, 16)


def chunk(
    seq: int, *hashes: int, index: int = 0, count: int = 1, incarnation: str = "i1", block_size: int = 16
) -> SnapshotChunk:
    return SnapshotChunk("r", incarnation, seq, index, count, block_size, (Stored("gpu", hashes),) if hashes else ())


class Shown:
    """What an index that obeys the feed's actions shows, and the requests that went out."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.blocks: set[int] = set()
        self.requests: list[int] = []

    def state(self) -> State:
        return self.feed.state

    def fenced(self) -> bool:
        return self.feed.fenced

    def alive(self) -> bool:
        return self.feed.alive

    def obey(self, actions: list[FeedAction]) -> None:
        self.feed.check_integrity()
        for action in actions:
            match action:
                case Reset():
                    self.blocks.clear()
                case RequestSnapshot(nonce):
                    self.requests.append(nonce)
                case Apply(ops):
                    self.blocks = applied(self.blocks, ops)

    def frame(self, frame: Frame, now: float = 0.0) -> None:
        self.obey(self.feed.on_frame(frame, now))

    def chunk(self, part: SnapshotChunk, nonce: int | None = None, now: float = 0.0) -> None:
        self.obey(self.feed.on_chunk(part, self.requests[-1] if nonce is None else nonce, now))

    def tick(self, now: float) -> None:
        self.obey(self.feed.tick(now))


def applied(blocks: set[int], ops: tuple[Op, ...]) -> set[int]:
    after = set(blocks)
    for op in ops:
        match op:
            case Stored(_, hashes):
                after.update(hashes)
            case Removed(_, hashes):
                after.difference_update(hashes)
            case Cleared():
                after.clear()
    return after


def joining() -> Shown:
    shown = Shown(Feed(incarnation="i1", block_size=16, max_blocks=100, now=0.0))
    shown.tick(0.0)
    return shown


def live(seq: int = 4) -> Shown:
    shown = joining()
    shown.chunk(chunk(seq, 1, 2))
    assert shown.state() is State.LIVE
    return shown
