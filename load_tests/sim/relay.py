"""What a simulated replica tells of itself: real event frames, late, and gauges as often as leases bring them.

A frame leaves `delay_s` after the first thing it tells and carries all that happened until then. A change that only the
gauge shows (an arrival, an end) goes with the next heartbeat, HEARTBEAT_INTERVAL_S later at most. Heartbeats that would
say nothing new are left out: only the lease could tell the difference, and a simulated replica that is gone is said to
be gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.limits import HEARTBEAT_INTERVAL_S
from router.wire import Frame, Op, Removed, Stored, encode_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.wire import Load

EVENT_DELAY_S: Final = 0.05


class SimRelay:
    """The frames of one replica's life. `due_at` is when the next one leaves; None while there is nothing to tell."""

    def __init__(self, replica: str, incarnation: str, *, block_size: int, delay_s: float) -> None:
        self.replica = replica
        self.incarnation = incarnation
        self.due_at: float | None = None
        self._block_size = block_size
        self._delay_s = delay_s
        self._seq = -1
        self._ops: list[Op] = []

    def __repr__(self) -> str:
        return f"<SimRelay {self.incarnation} seq={self._seq} waiting={len(self._ops)}>"

    def changed(self, ops: Sequence[Op], now: float) -> None:
        """Blocks came and went at `now`; without any, the gauge alone changed."""
        self._ops += ops
        due_at = now + (self._delay_s if ops else max(self._delay_s, HEARTBEAT_INTERVAL_S))
        if self.due_at is None or due_at < self.due_at:
            self.due_at = due_at

    def frame(self, load: Load, now: float) -> bytes:
        """The frame that leaves now, with the gauge of this moment."""
        ops = joined(self._ops)
        self._ops.clear()
        self.due_at = None
        self._seq += bool(ops)
        return encode_frame(Frame(self.replica, self.incarnation, self._seq, now, ops, load, self._block_size))


def joined(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The same operations, neighbours of one kind in one."""
    out: list[Op] = []
    for op in ops:
        last = out[-1] if out else None
        if isinstance(op, Stored) and isinstance(last, Stored):
            out[-1] = Stored(op.medium, last.hashes + op.hashes)
        elif isinstance(op, Removed) and isinstance(last, Removed):
            out[-1] = Removed(op.medium, last.hashes + op.hashes)
        else:
            out.append(op)
    return tuple(out)
