"""One model deployment as one ingress sees it: streams, index, loads and choice, composed. Sans-IO.

The shell passes in what sockets bring and performs the actions that come out; nothing here waits. A choice selects and
reserves in one synchronous step, so that two requests can never both take the same idle replica for free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from router.admission import Admission, Hold, Pressure
from router.cost import Standing
from router.errors import KvistBug, NoReplica, WireError
from router.feed import Apply, Feed, FeedAction, RequestSnapshot, Reset
from router.index import Depth, Index, IndexOverflow, held
from router.limits import INDEX_MARGIN_BLOCKS, INDEX_OFFLOADED_BLOCKS, SUSPECT_S
from router.live import LiveSessions
from router.load import Loads, ReplicaLoad, Reservation
from router.policy import Candidate, LeastTime, Policy, Question, Score
from router.rates import Observed, Paces
from router.replicas import Accuracy, Overstatement, PromptBlocks, ReplicaInfo, ReplicaStatus, problems_of
from router.step_rule import StepRule
from router.wire import decode_chunk, decode_frame, encode_snapshot_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.wire import Frame, SnapshotChunk

Message = TypeVar("Message", "Frame", "tuple[SnapshotChunk, int]")

NOTHING: Final = Depth(0, 0, 0)
MAX_SIBLINGS: Final = 64  # ingresses that are believed to send as much as this one
NONCES_PER_JOIN: Final = 2**24


class Action(NamedTuple):
    """Send these bytes to the replica's snapshot socket."""

    replica: str
    request: bytes


class Decision(msgspec.Struct, frozen=True):
    """Where a prompt goes. `predicted_cached_tokens` is for `candidates[0]`, as the engine itself will count them."""

    reservation: int
    candidates: tuple[str, ...]
    predicted_cached_tokens: int
    scores: tuple[Score, ...]


class _Member:
    """One replica: what it said of itself, its stream, and how true our picture of it proved."""

    __slots__ = (
        "accuracy", "alive", "bad_messages", "believed", "block_size", "feed", "info", "load", "name", "overstatement",
        "pool_tokens",
    )  # fmt: skip

    def __init__(self, info: ReplicaInfo, feed: Feed, load: ReplicaLoad) -> None:
        self.info = info
        self.name = info.replica
        self.block_size = info.block_size
        self.pool_tokens = info.pool_blocks * info.block_size
        self.feed = feed
        self.load = load
        self.accuracy = Accuracy()
        self.overstatement = Overstatement()
        self.bad_messages = 0
        self.alive = feed.alive  # the feed's answers, kept ready for the choice to read
        self.believed = not feed.fenced


class Fleet:
    """All replicas of one model deployment.

    Loop-confined: every method is synchronous and called on one thread, with `now` in monotonic seconds that never
    decrease. Messages of unknown replicas and malformed ones change nothing and are counted.
    """

    def __init__(self, *, model: str = "", policy: Policy | None = None) -> None:
        self.model = model
        self._policy = policy or LeastTime()
        self._members: dict[str, _Member] = {}
        self._indexes: dict[int, Index] = {}
        self._loads = Loads()
        self._paces = Paces()
        self.live = LiveSessions()
        self._admission = Admission()
        self._suspects: dict[str, float] = {}  # replica → until when it is passed over
        self._joins = 0
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Fleet {self.model} replicas={len(self._members)} {self._loads!r} {self._paces!r}>"

    @property
    def block_sizes(self) -> frozenset[int]:
        """Sizes that a prompt must be hashed with."""
        return frozenset(self._indexes)

    @property
    def routable(self) -> tuple[str, ...]:
        """Replicas whose lease holds, fenced ones included."""
        return tuple([name for name, member in self._members.items() if member.alive])

    @property
    def silent(self) -> frozenset[str]:
        """Replicas whose lease has ended, and those that were never heard."""
        return frozenset([name for name, member in self._members.items() if not member.alive])

    @property
    def open_reservations(self) -> int:
        """Requests chosen for and not finished."""
        return len(self._loads)

    def join(self, info: ReplicaInfo, now: float) -> list[Action]:
        """A replica exists. The same news again changes nothing; other news of the same replica starts it afresh."""
        name = info.replica
        known = self._members.get(name)
        if known is not None:
            if known.info == info:
                return []
            self._forget(name)
        self._joins += 1
        feed = Feed(
            incarnation=info.incarnation,
            block_size=info.block_size,
            max_blocks=info.pool_blocks + INDEX_MARGIN_BLOCKS + INDEX_OFFLOADED_BLOCKS,
            now=now,
            first_nonce=self._joins * NONCES_PER_JOIN,
        )
        self._loads.add(name, StepRule(info.step_tokens, info.share_tokens))
        member = self._members[name] = _Member(info, feed, self._loads[name])
        self._indexes.setdefault(info.block_size, Index()).add(name, pool_blocks=info.pool_blocks)
        return self._perform(member, feed.tick(now), now)

    def leave(self, replica: str, now: float) -> None:
        """A replica is gone, with its blocks. Its open reservations stay until they are finished."""
        del now
        if replica in self._members:
            self._forget(replica)
            self._loads.drop(replica)
            self.live.drop(replica)

    def on_frame(self, replica: str, data: bytes, now: float) -> list[Action]:
        """Take an event frame as it came from the replica's socket."""
        member = self._members.get(replica)
        frame = self._decoded(member, data, decode_frame)
        if member is None or frame is None:
            return []
        if frame.replica != replica:
            member.bad_messages += 1
            return []
        actions = member.feed.on_frame(frame, now)
        if frame.incarnation == member.feed.incarnation:
            self._loads.on_gauge(replica, frame.load, now)
        return self._perform(member, actions, now)

    def on_chunk(self, replica: str, data: bytes, now: float) -> list[Action]:
        """Take a part of a snapshot as it came from the replica's socket."""
        member = self._members.get(replica)
        answer = self._decoded(member, data, decode_chunk)
        if member is None or answer is None:
            return []
        chunk, nonce = answer
        if chunk.replica != replica:
            member.bad_messages += 1
            return []
        return self._perform(member, member.feed.on_chunk(chunk, nonce, now), now)

    def tick(self, now: float) -> list[Action]:
        """Let time pass for all streams and reservations. Call every 100 ms, after handling what has arrived."""
        self.sweep(now)
        return [action for name in self._members for action in self.tick_replica(name, now)]

    def sweep(self, now: float) -> None:
        """Let time pass for reservations, sessions and what is learnt."""
        self._loads.sweep(now)
        self.live.refresh(now)

    def tick_replica(self, replica: str, now: float) -> list[Action]:
        """Let time pass for one stream; an unknown one is ignored."""
        member = self._members.get(replica)
        return self._perform(member, member.feed.tick(now), now) if member else []

    def choose(self, prompt: PromptBlocks, now: float, *, exclude: frozenset[str] = frozenset()) -> Decision:
        """Select and reserve. Every routable replica outside `exclude` is a candidate; raises `NoReplica` without any.

        The reservation must be finished once, whatever becomes of the request. O(replicas · log prompt).
        """
        if self._suspects:
            exclude = self._passed_over(exclude, now)
        candidates, scores = self._ranked(prompt, exclude, now)
        self._turn += 1
        best = scores[0]
        member = self._members[best.replica]
        hashes = prompt.hashes.get(member.block_size, ())
        made = self._reservation(candidates[best.replica], hashes, best, prompt, now)
        self._paces.note_prompt(made.uncached_tokens, member.load.rule)
        member.load.arrivals.note(best.compute_s, now)
        self.live.note(
            prompt.session, best.replica, tokens=prompt.prompt_tokens, cached_tokens=best.cached_tokens, now=now
        )
        return Decision(
            self._loads.reserve(made), tuple([score.replica for score in scores]), best.cached_tokens, scores
        )

    def suspect(self, replica: str, now: float) -> None:
        """It was seen to fail: for SUSPECT_S others are chosen, where there are any."""
        self._suspects[replica] = now + SUSPECT_S

    def hold(self, prompt: PromptBlocks, now: float) -> Hold | None:
        """Whether a prompt must wait before it may be chosen for, and why; see router/admission.py. Whoever holds asks
        again, or calls `leave_held`."""
        if not prompt.session or self.live.is_alive(prompt.session):
            return None
        return self._admission.ask(prompt.session, prompt.prompt_tokens, self._pressure(), now)

    def leave_held(self, session: str) -> None:
        """The client of a held session has gone. Safe to call for any."""
        self._admission.leave(session)

    @property
    def held(self) -> int:
        """Sessions that wait."""
        return len(self._admission)

    @property
    def why_held(self) -> str:
        """In words, why they wait; "" while nobody does."""
        return self._admission.reason(self._pressure()) if self.held else ""

    def _pressure(self) -> Pressure:
        members = [one for one in self._members.values() if one.alive]
        part = max(self._loads.our_part, 1 / MAX_SIBLINGS)
        return Pressure(
            live_tokens=self.live.total_tokens / part,
            pool_tokens=sum([one.pool_tokens for one in members]),
            busy_share=sum([one.load.arrivals.busy_share for one in members]) / max(len(members), 1) / part,
            return_share=self.live.return_share,
            idle_replicas=sum([not one.load.running for one in members]),
        )

    def preview(self, prompt: PromptBlocks, now: float) -> tuple[Score, ...]:
        """How every routable replica stands for a prompt now, best first. Reserves nothing. Raises `NoReplica`."""
        return self._ranked(prompt, frozenset(), now)[1]

    def moved(self, reservation: int, replica: str, now: float) -> None:
        """The request went to another replica than the first candidate; its load goes with it."""
        was = self._loads.find(reservation)
        member = self._members.get(replica)
        if was is None or member is None or was.replica == replica:
            return
        size = member.block_size
        hashes = was.hashes if was.block_size == size else ()
        prompt = PromptBlocks(was.prompt_tokens, {size: hashes}, was.session)
        candidate = self._candidates([member], prompt, now)[replica]
        score = self._policy.rank([candidate], self._question(prompt, 0))[0]
        moved = self._reservation(candidate, hashes, score, prompt, was.made_at)
        moved.prefilling = was.prefilling
        self._loads.move(reservation, moved)
        self.live.move(was.session, replica)

    def first_token(self, reservation: int, cached_tokens: int, now: float) -> None:
        """The prompt is computed, of which the engine took `cached_tokens` from its cache. Later calls say nothing."""
        done = self._loads.first_token(reservation, now)
        if done is None:
            return
        member = self._members.get(done.replica)
        if member is not None:
            own = max(done.prompt_tokens - cached_tokens, 1)
            steps = member.load.rule.steps(own)
            computed = done.ahead_tokens + done.overtaken_tokens + own
            seen = Observed(computed, steps, done.running, now - done.made_at)
            self._paces.observe(seen, member.load.slowness, now)
            member.accuracy.note(predicted=done.predicted_cached_tokens, actual=cached_tokens, now=now)
            if member.info.optimistic:
                member.overstatement.note(shown=done.shown_cached_tokens, found=cached_tokens)

    def finish(self, reservation: int, now: float) -> None:
        """The request has ended, in whatever way. Safe to call again."""
        done = self._loads.release(reservation)
        if done is not None:
            self._loads.ended(done.replica, now)
            self.live.touch(done.session, now)
            if not done.prefilling:
                self._paces.observe_answer(now - done.first_at)

    def status(self, now: float) -> list[ReplicaStatus]:
        """What operators see, per replica."""
        return [self._status_of(member, now) for member in self._members.values()]

    def check_integrity(self) -> None:
        """Raise `KvistBug` when any part contradicts itself. O(all blocks)."""
        self._loads.check_integrity()
        self.live.check_integrity()
        for index in self._indexes.values():
            index.check_integrity()
        for member in self._members.values():
            member.feed.check_integrity()
            if (member.alive, member.believed) != (member.feed.alive, not member.feed.fenced):
                raise KvistBug(f"{member.name}: the fleet and its feed disagree")

    def resident(self, replica: str) -> dict[str, frozenset[int]]:
        """A copy of the blocks shown for a known replica, by medium, for tests and comparisons. O(its blocks)."""
        return self._index_of(self._members[replica]).resident(replica)

    def fenced(self, replica: str) -> bool:
        """Whether a known replica gets no locality credit now."""
        return not self._members[replica].believed

    def _passed_over(self, exclude: frozenset[str], now: float) -> frozenset[str]:
        """`exclude` and the suspects, unless that leaves nobody."""
        self._suspects = {name: until for name, until in self._suspects.items() if until > now}
        wider = exclude.union(self._suspects)
        return wider if any(name not in wider for name in self.routable) else exclude

    def _ranked(
        self, prompt: PromptBlocks, exclude: frozenset[str], now: float
    ) -> tuple[dict[str, Candidate], tuple[Score, ...]]:
        chosen = [one for one in self._members.values() if one.alive]
        if exclude:
            chosen = [one for one in chosen if one.name not in exclude]
        if not chosen:
            raise NoReplica("no replica is routable now")
        candidates = self._candidates(chosen, prompt, now)
        root = next((hashes[0] for hashes in prompt.hashes.values() if hashes), 0)
        return candidates, self._policy.rank(candidates.values(), self._question(prompt, root))

    def _question(self, prompt: PromptBlocks, root: int) -> Question:
        paces = self._paces
        return Question(
            prompt.prompt_tokens,
            root,
            self._turn,
            paces.tokens_per_s,
            paces.decode_s,
            paces.short_share,
            paces.answer_steps,
        )

    def _index_of(self, member: _Member) -> Index:
        return self._indexes[member.block_size]

    def _forget(self, name: str) -> None:
        size = self._members.pop(name).block_size
        self._indexes[size].drop(name)
        if all(member.block_size != size for member in self._members.values()):
            del self._indexes[size]

    @staticmethod
    def _decoded(member: _Member | None, data: bytes, decode: Callable[[bytes], Message]) -> Message | None:
        if member is None:
            return None
        try:
            return decode(data)
        except WireError:
            member.bad_messages += 1
            return None

    def _perform(self, member: _Member, actions: list[FeedAction], now: float) -> list[Action]:
        """Do what the feed said, after every call of it."""
        member.alive, member.believed = member.feed.alive, not member.feed.fenced
        index, name = self._index_of(member), member.name
        out: list[Action] = []
        for action in actions:
            match action:
                case Apply(ops):
                    try:
                        index.apply(name, ops)
                    except IndexOverflow:
                        return self._perform(member, member.feed.on_overflow(now), now)
                case Reset():
                    index.clear(name)
                case RequestSnapshot(nonce):
                    out.append(Action(name, encode_snapshot_request(nonce)))
        return out

    def _candidates(self, members: list[_Member], prompt: PromptBlocks, now: float) -> dict[str, Candidate]:
        found: dict[str, Candidate] = {}
        for size, index in self._indexes.items():
            hashes = prompt.hashes.get(size, ())
            deepest_first: Sequence[int] = ()
            same = [member for member in members if member.block_size == size]
            believed = [member.name for member in same if member.believed]
            depths = index.match(hashes, believed)
            for member in same:
                name, load = member.name, member.load
                depth = depths.get(name, NOTHING)
                end, coming = depth.disk, 0
                ahead = load.inflight_blocks
                if ahead and end < len(hashes) and hashes[end] in ahead and member.believed:
                    deepest_first = deepest_first or hashes[::-1]
                    coming = held(deepest_first, ahead, start=end) - end
                standing = load.standing
                if standing is None or load.prefilling:
                    standing = load.standing = self._standing(member, now)
                found[name] = Candidate(
                    name, size, depth, coming, load.running, index.room_blocks(name),
                    member.overstatement.tokens, standing,
                )  # fmt: skip
        return found

    def _standing(self, member: _Member, now: float) -> Standing:
        """As of now; it holds until the load changes when no request of ours is being computed."""
        load, arrivals = member.load, member.load.arrivals
        backlog = load.left_tokens(self._paces.tokens_per_s, now) if load.backlog_tokens else 0
        return Standing(
            load.rule,
            load.rule.part_tokens,
            backlog,
            load.ahead(backlog) if backlog else (),
            load.slowness.factor,
            arrivals.per_s * self.live.open_share / (1.0 - arrivals.busy_share),
            load.overdue_s,
            member.pool_tokens - self.live.tokens_on(member.name),
        )

    @staticmethod
    def _reservation(
        candidate: Candidate, hashes: Sequence[int], score: Score, prompt: PromptBlocks, made_at: float
    ) -> Reservation:
        return Reservation(
            replica=candidate.replica,
            block_size=candidate.block_size,
            prompt_tokens=prompt.prompt_tokens,
            predicted_cached_tokens=score.cached_tokens,
            ahead_tokens=score.ahead_tokens,
            hashes=hashes,
            first_hashes=hashes[candidate.depth.disk + candidate.coming_blocks :],
            made_at=made_at,
            shown_cached_tokens=candidate.shown_tokens(prompt.prompt_tokens),
            session=prompt.session,
            running=candidate.running,
            expected_s=score.wait_s + score.compute_s,
        )

    def _status_of(self, member: _Member, now: float) -> ReplicaStatus:
        info, feed, load = member.info, member.feed, member.load
        predicted, actual = member.accuracy.totals(now)
        return ReplicaStatus(
            replica=info.replica,
            model=info.model,
            state=feed.state.value,
            incarnation=feed.incarnation,
            routable=feed.alive and self._suspects.get(info.replica, now) <= now,
            fenced=feed.fenced,
            block_size=info.block_size,
            pool_blocks=info.pool_blocks,
            blocks=self._index_of(member).blocks(info.replica),
            silence_s=feed.silence_s(now),
            behind_frames=feed.behind,
            bad_messages=member.bad_messages,
            open_reservations=len(load.inflight),
            backlog_tokens=load.backlog_tokens,
            running=load.gauge.running,
            waiting=load.gauge.waiting,
            skipped_events=load.gauge.skipped_events,
            predicted_cached_tokens=predicted,
            actual_cached_tokens=actual,
            overstated_tokens=member.overstatement.tokens,
            counters=dict(feed.counters),
            problems=problems_of(
                feed,
                bad_messages=member.bad_messages,
                skipped_events=load.gauge.skipped_events,
                predicted=predicted,
                actual=actual,
                data_fault=info.data_fault,
            ),
        )


__all__ = [
    "Action",
    "Decision",
    "Fleet",
    "PromptBlocks",
    "ReplicaInfo",
    "ReplicaStatus",
]
