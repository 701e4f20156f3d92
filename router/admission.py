"""Holds new conversations while those that are alive fill the caches: the guard against thrash.

When the blocks of all live sessions exceed what the pools can hold, each turn evicts what another needs. Times to first
token grow, which keeps sessions alive for longer, which makes the working set larger: by itself it does not end. A new
session is therefore held, first come first served, while all of these are true, and for MAX_HOLD_S at most:

* with it, live sessions would need more than LIVE_SHARE of all pools;
* prefills fill more than BUSY_SHARE of the replicas' time: an idle cluster can afford to compute again;
* no replica is without a request just now: whoever has nothing to do may as well begin.

Traffic whose sessions do not return is an open loop: holding it would only add to its wait. Nothing is held there, nor
a request that names no session, nor a session that is alive.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from router.limits import HELD_FORGOTTEN_S, HOLD_ASK_S, MAX_HELD, MAX_HOLD_S

LIVE_SHARE: Final = 0.8  # a pool also holds what is being computed, and heads of sessions to come
BUSY_SHARE: Final = 0.2  # below, simulated clusters lost more by holding than by thrash
RETURN_SHARE: Final = 0.5  # of requests with a session, those of a known one: below, sessions are an open loop


class Pressure(NamedTuple):
    """How a deployment is: tokens of live sessions and of all pools, the share of the replicas' time that prefills
    fill, the share of requests that continue a known session, and replicas without any request."""

    live_tokens: float
    pool_tokens: int
    busy_share: float
    return_share: float
    idle_replicas: int = 0

    def is_high(self, new_tokens: int) -> bool:
        """Whether one more session of so many tokens must wait."""
        return (
            self.return_share >= RETURN_SHARE
            and self.busy_share > BUSY_SHARE
            and not self.idle_replicas
            and self.live_tokens > 0
            and self.live_tokens + new_tokens > LIVE_SHARE * self.pool_tokens
        )


class Hold(NamedTuple):
    """Not now: why, and after how long to ask again."""

    reason: str
    again_in_s: float


class _Waiting(msgspec.Struct):
    since: float
    asked_at: float


class Admission:
    """Sessions that wait, oldest first; at most MAX_HELD, none for longer than MAX_HOLD_S. O(1) per question.

    Whoever was told to hold asks again; who does not for HELD_FORGOTTEN_S has gone, and nobody waits behind it."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self.admitted_late = 0  # after MAX_HOLD_S, against the rule

    def __repr__(self) -> str:
        return f"<Admission held={len(self._waiting)} late={self.admitted_late}>"

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, session: str, tokens: int, pressure: Pressure, now: float) -> Hold | None:
        """Whether a new session's first request must wait. None admits it, for good."""
        self._forget_gone(now)
        known = self._waiting.get(session)
        is_first = next(iter(self._waiting), session) == session
        is_late = known is not None and now - known.since >= MAX_HOLD_S
        has_room = known is not None or len(self._waiting) < MAX_HELD
        may_go = is_first and not pressure.is_high(tokens)
        if may_go or is_late or not has_room:
            self.admitted_late += is_late and not may_go
            self._waiting.pop(session, None)
            return None
        self._waiting[session] = _Waiting(now if known is None else known.since, now)
        return Hold(self.reason(pressure), HOLD_ASK_S)

    def leave(self, session: str) -> None:
        """Its client has gone. Unknown ones are ignored."""
        self._waiting.pop(session, None)

    def _forget_gone(self, now: float) -> None:
        while self._waiting:
            name, first = next(iter(self._waiting.items()))
            if first.asked_at > now - HELD_FORGOTTEN_S:
                return
            del self._waiting[name]

    def reason(self, pressure: Pressure) -> str:
        """Why they wait, in words."""
        share = pressure.live_tokens / max(pressure.pool_tokens, 1)
        return (
            f"{len(self._waiting)} new sessions wait: live ones fill {share:.0%} of the caches, "
            f"prefills {pressure.busy_share:.0%} of the time"
        )
