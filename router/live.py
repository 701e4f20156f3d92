"""Which conversations are alive, and how much of each replica's pool their next turns need.

A session is alive while its last request is younger than the gap after which most sessions that return have returned:
that gap is learnt. Blocks of live sessions will be needed again; all others may go. Whoever names no session is not
counted, and nothing rests on it but placement: the index says what is cached.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Final

import msgspec

from router.errors import KvistBug
from router.limits import LIVE_HIGH_S, LIVE_LOW_S, MAX_SESSIONS, SESSION_FORGOTTEN_S

LIVE_DEFAULT_S: Final = 60.0  # between two turns of an agent there is a tool; between two of a person, a minute
RETURNED_SHARE: Final = 0.95  # of the sessions that return, those that have by then
GAP_WEIGHT: Final = 0.1  # in powers of e: a gap that is ten times too short is right after two dozen returns
RETURN_WEIGHT: Final = 0.003  # an hour of a busy cluster is open or closed, not its first minutes


class _Session(msgspec.Struct):
    replica: str
    tokens: int
    shared_tokens: int
    seen_at: float
    is_alive: bool = True


class LiveSessions:
    """Sessions by name, least recently seen first. At most MAX_SESSIONS, none unseen for SESSION_FORGOTTEN_S.

    `tokens` of a session are those of its last prompt, on the replica that took it, without the head that others had
    brought in before its first. O(1) per call, amortised."""

    def __init__(self) -> None:
        self._alive: OrderedDict[str, _Session] = OrderedDict()
        self._dormant: OrderedDict[str, _Session] = OrderedDict()
        self._tokens: dict[str, int] = {}
        self.alive_s = LIVE_DEFAULT_S
        self.return_share = 1.0  # of recent requests with a session, those of a session that was known: agents return
        self.total_tokens = 0

    def __repr__(self) -> str:
        return f"<LiveSessions {len(self._alive)} alive, {self.total_tokens} tokens, for {self.alive_s:.0f} s>"

    def __len__(self) -> int:
        return len(self._alive)

    @property
    def open_share(self) -> float:
        """How far a delay is passed on. A session that returns comes after its last answer: what delays that delays
        also what follows it. A queue grows where neither who waits nor who comes next is of that kind."""
        return (1.0 - self.return_share) ** 2

    def is_alive(self, session: str) -> bool:
        """Whether its next turn is expected."""
        return session in self._alive

    def tokens_on(self, replica: str) -> int:
        """Prompt tokens of live sessions whose last request a replica took."""
        return self._tokens.get(replica, 0)

    def note(self, session: str, replica: str, *, tokens: int, cached_tokens: int, now: float) -> None:
        """A session's request of so many tokens goes to a replica that has some of them. Nameless ones say nothing."""
        if not session:
            return
        self.refresh(now)
        known = self._alive.pop(session, None) or self._dormant.pop(session, None)
        self.return_share += RETURN_WEIGHT * ((known is not None) - self.return_share)
        if known is not None:
            self._learn(now - known.seen_at)
            if known.is_alive:
                self._add(known.replica, -known.tokens)
        shared = cached_tokens if known is None else known.shared_tokens
        own = max(tokens - shared, 0)
        self._alive[session] = _Session(replica, own, shared, now)
        self._add(replica, own)
        while len(self._alive) + len(self._dormant) > MAX_SESSIONS:
            self._forget_oldest()

    def move(self, session: str, replica: str) -> None:
        """Its request went elsewhere."""
        known = self._alive.get(session)
        if known is not None:
            self._add(known.replica, -known.tokens)
            known.replica = replica
            self._add(replica, known.tokens)

    def touch(self, session: str, now: float) -> None:
        """Its request has ended: it is alive from now on."""
        known = self._alive.get(session)
        if known is not None:
            known.seen_at = now
            self._alive.move_to_end(session)

    def refresh(self, now: float) -> None:
        """Let time pass. O(sessions that fall asleep)."""
        while self._alive and next(iter(self._alive.values())).seen_at < now - self.alive_s:
            name, session = self._alive.popitem(last=False)
            session.is_alive = False
            self._add(session.replica, -session.tokens)
            self._dormant[name] = session
        while self._dormant and next(iter(self._dormant.values())).seen_at < now - SESSION_FORGOTTEN_S:
            self._dormant.popitem(last=False)

    def drop(self, replica: str) -> None:
        """A replica is gone; what its sessions need is nowhere. O(sessions)."""
        for name in [name for name, session in self._alive.items() if session.replica == replica]:
            session = self._alive.pop(name)
            session.is_alive = False
            self._add(replica, -session.tokens)
            self._dormant[name] = session
            self._dormant.move_to_end(name, last=False)

    def check_integrity(self) -> None:
        """Raise `KvistBug` when a sum is not the sum of its sessions. O(sessions)."""
        sums: dict[str, int] = {}
        for session in self._alive.values():
            if session.tokens:
                sums[session.replica] = sums.get(session.replica, 0) + session.tokens
        if sums != self._tokens or self.total_tokens != sum(sums.values()):
            raise KvistBug("live tokens are not the sum of live sessions")
        if self._alive.keys() & self._dormant.keys() or len(self._alive) + len(self._dormant) > MAX_SESSIONS:
            raise KvistBug("a session is alive and dormant, or there are too many")

    def _learn(self, gap_s: float) -> None:
        """Move towards the gap that RETURNED_SHARE of all returns stay within."""
        missed = gap_s > self.alive_s
        moved = self.alive_s * math.exp(GAP_WEIGHT * (RETURNED_SHARE if missed else RETURNED_SHARE - 1.0))
        self.alive_s = min(max(moved, LIVE_LOW_S), LIVE_HIGH_S)

    def _add(self, replica: str, tokens: int) -> None:
        self.total_tokens += tokens
        left = self._tokens.get(replica, 0) + tokens
        if left:
            self._tokens[replica] = left
        else:
            self._tokens.pop(replica, None)

    def _forget_oldest(self) -> None:
        if self._dormant:
            self._dormant.popitem(last=False)
            return
        _, session = self._alive.popitem(last=False)
        self._add(session.replica, -session.tokens)
