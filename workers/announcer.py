"""What a replica says to routers, as bytes: numbered event frames, heartbeats, snapshots in chunks.

Data frames count up from 0 without holes. When HEARTBEAT_INTERVAL_S has passed without a frame, a heartbeat repeats the
last number, so that a lost tail shows. A snapshot is the resident set as of the last number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.limits import HEARTBEAT_INTERVAL_S, MAX_FRAME_HASHES, MAX_FRAME_OPS, SNAPSHOT_CHUNK_HASHES
from router.wire import Frame, Load, Op, Removed, SnapshotChunk, Stored, encode_chunk, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Announcer:
    """The stream of one incarnation of one replica. Sans-IO: the caller sends what it gets, and a heartbeat when
    `heartbeat_at` has come.

    `resident` returns the shown blocks as of the last announced operation; `load` is read for every frame. `now` is
    monotonic, `ts` the wall clock, both in seconds. Bounds: MAX_FRAME_HASHES and MAX_FRAME_OPS per frame,
    `chunk_hashes` per chunk. `block_size` is what the engine's events have; where that proves not to be what the
    replica said of itself, it is set anew, and routers see the contradiction.
    """

    def __init__(
        self,
        *,
        replica: str,
        incarnation: str,
        block_size: int,
        resident: Callable[[], tuple[Stored, ...]],
        load: Callable[[], Load],
        chunk_hashes: int = SNAPSHOT_CHUNK_HASHES,
    ) -> None:
        self.replica = replica
        self.incarnation = incarnation
        self.seq = -1  # of the last data frame
        self.block_size = block_size
        self._resident = resident
        self._load = load
        self._chunk_hashes = chunk_hashes
        self.heartbeat_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Announcer {self.replica} {self.incarnation} seq={self.seq}>"

    def announce(self, ops: tuple[Op, ...], *, now: float, ts: float) -> Iterator[bytes]:
        """Operations as one or more frames, to be sent in order; nothing to say gives none. O(hashes)."""
        for part in _parts(ops):
            self.seq += 1
            yield self._frame(part, now=now, ts=ts)

    def heartbeat(self, *, now: float, ts: float) -> bytes:
        """A frame without operations, under the last number."""
        return self._frame((), now=now, ts=ts)

    def snapshot(self, nonce: int) -> Iterator[bytes]:
        """The chunks that answer the request with this nonce; all of one moment, however slowly they are taken."""
        seq, block_size = self.seq, self.block_size
        chunks = list(_chunks(self._resident(), self._chunk_hashes))
        for index, blocks in enumerate(chunks):
            chunk = SnapshotChunk(
                replica=self.replica,
                incarnation=self.incarnation,
                seq=seq,
                index=index,
                count=len(chunks),
                block_size=block_size,
                blocks=blocks,
            )
            yield encode_chunk(chunk, nonce=nonce)

    def _frame(self, ops: tuple[Op, ...], *, now: float, ts: float) -> bytes:
        self.heartbeat_at = now + HEARTBEAT_INTERVAL_S
        frame = Frame(
            replica=self.replica,
            incarnation=self.incarnation,
            seq=self.seq,
            ts=ts,
            ops=ops,
            load=self._load(),
            block_size=self.block_size,
        )
        return encode_frame(frame)


def _parts(ops: tuple[Op, ...]) -> Iterator[tuple[Op, ...]]:
    """Cut so that no frame holds more than MAX_FRAME_HASHES and MAX_FRAME_OPS."""
    part: list[Op] = []
    count = 0
    for op in ops:
        for piece in _pieces(op):
            size = len(piece.hashes) if isinstance(piece, Stored | Removed) else 0
            if len(part) == MAX_FRAME_OPS or (part and count + size > MAX_FRAME_HASHES):
                yield tuple(part)
                part, count = [], 0
            part.append(piece)
            count += size
    if part:
        yield tuple(part)


def _pieces(op: Op) -> Iterator[Op]:
    if isinstance(op, Stored | Removed) and len(op.hashes) > MAX_FRAME_HASHES:
        for start in range(0, len(op.hashes), MAX_FRAME_HASHES):
            yield type(op)(op.medium, op.hashes[start : start + MAX_FRAME_HASHES])
    else:
        yield op


def _chunks(blocks: tuple[Stored, ...], chunk_hashes: int) -> Iterator[tuple[Stored, ...]]:
    """Cut into chunks of at most `chunk_hashes`; one empty chunk when nothing is resident."""
    if not blocks:
        yield ()
    for medium, hashes in blocks:
        for start in range(0, len(hashes), chunk_hashes):
            yield (Stored(medium, hashes[start : start + chunk_hashes]),)
