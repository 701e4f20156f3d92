"""Swarms in virtual time: what is due when, who waits for whom, and one outcome for every request."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.swarm.endpoint import Answer, Call
from load_tests.swarm.play import Swarm
from load_tests.swarm.player import ERROR_PAUSE_S, Player
from load_tests.swarm.run_clock import RunClock
from load_tests.swarm.scenario import Ask, Branch, Session, Turn, requests_of
from load_tests.swarm.schedule import due_times
from load_tests.swarm.settings import Settings
from load_tests.swarm.stream_reader import StreamReader
from load_tests.swarm.tally import Tally
from tests.load_tests.swarm.entries import CALM
from tests.load_tests.swarm.test_stream_reader import CHAT
from tests.load_tests.swarm.virtual_time import JumpingLoop, run_virtually

if TYPE_CHECKING:
    from collections.abc import Callable

    from load_tests.swarm.ledger import Entry

LATENCIES = st.lists(st.floats(0, 30), min_size=1, max_size=10)


class FakeAsker:
    """Answers after the latencies in turn, or with the statuses in turn; keeps to the limit of a call."""

    def __init__(self, loop: JumpingLoop, latencies_s: list[float], statuses: list[int] | None = None) -> None:
        self._loop = loop
        self._latencies_s = latencies_s
        self._statuses = statuses or [200]
        self.calls: list[Call] = []
        self.most_at_once = 0
        self._at_once = 0

    async def ask(self, call: Call) -> Answer:
        number, sent_s, stream = len(self.calls), self._loop.time(), StreamReader("chat")
        self.calls.append(call)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        latency_s = self._latencies_s[number % len(self._latencies_s)]
        try:
            await asyncio.sleep(min(latency_s, call.limit_s))
        finally:
            self._at_once -= 1
        status = self._statuses[number % len(self._statuses)]
        if latency_s > call.limit_s:
            return Answer("timed_out", "timeout", None, None, sent_s, self._loop.time(), stream)
        if status != 200:
            return Answer("refused", f"http_{status}", status, None, sent_s, self._loop.time(), stream)
        stream.feed(CHAT, self._loop.time())
        return Answer("completed", None, 200, "a", sent_s, self._loop.time(), stream)


class Listed:
    """A workload of given sessions."""

    at_once = None

    def __init__(self, *sessions: Session, is_endless: bool = False) -> None:
        self._sessions = sessions
        self.total = None if is_endless else len(sessions)

    def session(self, number: int) -> Session:
        one = self._sessions[number % len(self._sessions)]
        return Session(number=number, turns=one.turns, due_s=one.due_s)


def turn(*, think_s: float = 0.0, branches: tuple[Branch, ...] = ()) -> Turn:
    return Turn(content=Ask("Why?"), think_s=think_s, max_tokens=5, said="Because.", branches=branches)


def session(*turns: Turn, due_s: float | None = None) -> Session:
    return Session(number=0, turns=turns, due_s=due_s)


class Played(NamedTuple):
    """What a run left."""

    entries: list[Entry]
    asker: FakeAsker
    tally: Tally
    ended_s: float


def play(
    workload: Listed,
    latencies_s: list[float],
    *,
    statuses: list[int] | None = None,
    stop_s: float | None = None,
    **settings: Any,
) -> Played:
    """Run to the end, or until it is stopped at `stop_s`."""

    async def run(loop: JumpingLoop) -> Played:
        defaults: dict[str, Any] = {"api": "chat", "duration_s": 20.0, "warmup_s": 0.0, "ramp_s": 0.0}
        given_settings = Settings(**(defaults | settings))
        entries: list[Entry] = []
        clock = RunClock(end_s=given_settings.end_s, clock=loop.time)
        tally = Tally(entries.append, clock.now_s)
        asker = FakeAsker(loop, latencies_s, statuses)
        player = Player(given_settings, asker, clock, watcher=tally)
        task = asyncio.create_task(Swarm(given_settings, workload, player, clock).run())
        await asyncio.wait([task], timeout=stop_s)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        return Played(entries, asker, tally, loop.time())

    return run_virtually(run)


def check_one_outcome_each(played: Played) -> None:
    played.tally.check_integrity()
    assert len(played.entries) == len(played.asker.calls)
    for entry in played.entries:
        entry.check_integrity()


class TestOpenLoop:
    """Due times are the schedule's, whatever the endpoint does."""

    @CALM
    @given(latencies_s=LATENCIES, seed=st.integers(0, 50))
    def test_answers_never_shift_a_request(self, latencies_s: list[float], seed: int) -> None:
        """Also where each answer takes longer than the run."""
        played = play(
            Listed(session(turn(), turn()), is_endless=True), latencies_s, rate=3.0, rate_of="requests", seed=seed
        )
        rng = random.Random(f"arrivals/{seed}")
        wanted = list(due_times(rate=3.0, ramp_s=0.0, end_s=20.0, arrivals="poisson", rng=rng))
        assert sorted(entry.due_s for entry in played.entries) == pytest.approx(wanted, abs=1e-6)
        check_one_outcome_each(played)

    @CALM
    @given(latencies_s=LATENCIES)
    def test_sessions_begin_when_they_are_due(self, latencies_s: list[float]) -> None:
        """Their later turns wait for answers, as agents do."""
        played = play(Listed(session(turn(), turn()), is_endless=True), latencies_s, rate=1.0, arrivals="even")
        firsts = sorted(entry.due_s for entry in played.entries if entry.turn == 0)
        assert firsts == pytest.approx([float(at) for at in range(1, 20)])
        check_one_outcome_each(played)

    def test_a_traces_own_times_are_kept(self) -> None:
        played = play(Listed(session(turn(), due_s=0.5), session(turn(), due_s=3.25)), [9.0])
        assert [entry.due_s for entry in played.entries] == [0.5, 3.25]

    def test_latency_counts_from_when_a_request_was_due(self) -> None:
        """A client that was late itself does not make an endpoint look quick."""
        played = play(Listed(session(turn()), is_endless=True), [2.0], rate=1.0, arrivals="even")
        assert {round(entry.ttft_ms or 0) for entry in played.entries} == {2000}


class TestClosedLoop:
    """N agents, each with one conversation at a time."""

    @CALM
    @given(latencies_s=LATENCIES, agents=st.integers(1, 6))
    def test_no_more_requests_than_agents_are_in_flight(self, latencies_s: list[float], agents: int) -> None:
        workload = Listed(session(turn(think_s=1.0), turn(think_s=0.5)), is_endless=True)
        played = play(workload, latencies_s, agents=agents)
        assert 0 < played.asker.most_at_once <= agents
        check_one_outcome_each(played)

    def test_a_turn_is_due_its_pause_after_the_answer_before(self) -> None:
        played = play(Listed(session(turn(), turn(think_s=2.5))), [1.5], agents=1)
        assert [entry.due_s for entry in played.entries] == [0.0, 4.0]

    def test_the_ramp_starts_agents_one_after_the_other(self) -> None:
        played = play(Listed(*[session(turn())] * 4), [1.0], agents=4, ramp_s=8.0)
        assert [entry.due_s for entry in played.entries] == [0.0, 2.0, 4.0, 6.0]

    def test_what_was_due_in_the_warm_up_is_marked(self) -> None:
        played = play(Listed(session(turn(), turn(), turn())), [4.0], agents=1, warmup_s=5.0)
        assert [entry.is_measured for entry in played.entries] == [False, False, True]

    def test_nothing_is_due_after_the_end(self) -> None:
        played = play(Listed(session(turn(think_s=1.0)), is_endless=True), [1.0], agents=2)
        assert max(entry.due_s for entry in played.entries) < 20.0
        assert played.ended_s < 22.0


class TestSubAgents:
    """Forks and joins."""

    def test_siblings_are_due_at_once_and_the_parent_waits_for_the_last(self) -> None:
        branches = tuple(Branch(name=f"sub{at}", turns=(turn(),) * (at + 1)) for at in range(3))
        played = play(Listed(session(turn(branches=branches), turn(think_s=0.5))), [1.0], agents=1)
        firsts = [entry.due_s for entry in played.entries if entry.parent and entry.turn == 0]
        (last,) = (entry for entry in played.entries if entry.parent is None and entry.turn == 1)
        assert firsts == [1.0] * 3
        assert last.due_s == 1.0 + 3.0 + 0.5
        assert {entry.agent for entry in played.entries if entry.parent} == {f"agent-000/sub{at}" for at in range(3)}

    @CALM
    @given(widths=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def test_every_request_of_a_session_is_made_when_nothing_fails(self, widths: list[int]) -> None:
        branch = Branch(name="sub", turns=(turn(), turn()))
        one = session(*(turn(branches=(branch,) * width) for width in widths), turn())
        played = play(Listed(one), [0.25], agents=1)
        assert len(played.entries) == requests_of(one.turns)


class TestFaults:
    """An agent goes on as a client would."""

    @pytest.mark.parametrize(("status", "requests"), [(529, 3), (500, 3), (429, 3), (400, 1), (401, 1), (413, 1)])
    def test_a_session_goes_on_after_what_may_pass_and_not_after_the_rest(self, status: int, requests: int) -> None:
        played = play(Listed(session(turn(), turn(), turn())), [0.0], statuses=[status], agents=1)
        assert [entry.error for entry in played.entries] == [f"http_{status}"] * requests
        assert [entry.due_s for entry in played.entries] == [at * ERROR_PAUSE_S for at in range(requests)]

    def test_the_limit_of_a_request_is_a_time_out_and_the_end_of_the_run_is_not(self) -> None:
        played = play(Listed(session(turn(), turn())), [7.0, 90.0], agents=1, request_limit_s=5.0, grace_s=3.0)
        assert [entry.outcome for entry in played.entries] == ["timed_out", "timed_out"]
        played = play(Listed(session(turn())), [90.0], agents=1, request_limit_s=60.0, grace_s=3.0)
        assert [(entry.outcome, entry.error) for entry in played.entries] == [("unfinished", None)]
        assert played.ended_s == pytest.approx(23.0)

    @CALM
    @given(stop_s=st.floats(0.01, 19), latencies_s=LATENCIES, loop_is_open=st.booleans())
    def test_a_run_that_is_stopped_leaves_one_outcome_for_every_request(
        self, stop_s: float, latencies_s: list[float], loop_is_open: bool
    ) -> None:
        branches = (Branch(name="sub", turns=(turn(), turn())),) * 2
        workload = Listed(session(turn(branches=branches), turn(think_s=0.5)), is_endless=True)
        kind: dict[str, Any] = {"rate": 2.0} if loop_is_open else {"agents": 3}
        played = play(workload, latencies_s, stop_s=stop_s, **kind)
        check_one_outcome_each(played)
        in_flight = [entry for entry in played.entries if entry.outcome == "unfinished"]
        assert all(not entry.is_error for entry in in_flight)


def test_each_request_has_a_new_line_when_it_changes_and_else_the_same() -> None:
    """The line stands before the system text of every body."""
    makers: dict[str, Callable[[list[bytes]], bool]] = {
        "changing": lambda lines: len(set(lines)) == len(lines) == 4,
        "fixed": lambda lines: len(set(lines)) == 1,
        "none": lambda lines: lines == [],
    }
    for preamble, holds in makers.items():
        played = play(Listed(session(turn(), turn()), session(turn(), turn())), [0.1], agents=2, preamble=preamble)
        bodies = [call.body for call in played.asker.calls]
        mark = b"x-anthropic-billing-header"
        assert holds([body[body.index(mark) :].split(b";", 3)[2] for body in bodies if mark in body])
