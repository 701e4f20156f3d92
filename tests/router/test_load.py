"""Loads are the sum of the open reservations, and nothing is counted twice or for ever."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router import load as load_module
from router.errors import KvistBug
from router.limits import LOAD_SETTLE_S, OVERDUE_S, RESERVATION_TTL_S, SEEN_S
from router.load import Loads, Reservation
from router.wire import Load

REPLICAS = ("a", "b")


def reservation(
    replica: str = "a", *, tokens: int = 100, cached: int = 40, at: float = 0.0, first: int = 0
) -> Reservation:
    hashes = list(range(first, first + 4))
    return Reservation(replica, 16, tokens, cached, 0, hashes, hashes[2:], at)


def gauge(backlog: int, running: int = 0, waiting: int = 0) -> Load:
    return Load(running, waiting, backlog, 0, 0)


class LoadsAgainstModel(RuleBasedStateMachine):
    """Any order of reserve, move, first token, release, sweep, gauge, leave and return keeps the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.loads = Loads()
        self.now = 0.0
        self.present: set[str] = set()
        self.tokens: list[int] = []
        for replica in REPLICAS:
            self.add(replica)

    @rule(replica=st.sampled_from(REPLICAS))
    def add(self, replica: str) -> None:
        self.loads.add(replica)
        self.present.add(replica)

    @rule(replica=st.sampled_from(REPLICAS))
    def drop(self, replica: str) -> None:
        self.loads.drop(replica)
        self.present.discard(replica)

    @rule(replica=st.sampled_from(REPLICAS), tokens=st.integers(1, 500), first=st.integers(0, 9))
    def reserve(self, replica: str, tokens: int, first: int) -> None:
        if replica in self.present:
            made = reservation(replica, tokens=tokens, cached=tokens // 2, at=self.now, first=first)
            self.tokens.append(self.loads.reserve(made))

    @rule(source=st.data(), replica=st.sampled_from(REPLICAS))
    def move(self, source: st.DataObject, replica: str) -> None:
        if self.tokens and replica in self.present:
            token = source.draw(st.sampled_from(self.tokens))
            was = self.loads.find(token)
            if was is not None:
                moved = reservation(replica, tokens=was.prompt_tokens, cached=0, at=was.made_at)
                moved.prefilling = was.prefilling
                self.loads.move(token, moved)

    @rule(source=st.data())
    def first_token(self, source: st.DataObject) -> None:
        if self.tokens:
            token = source.draw(st.sampled_from(self.tokens))
            self.loads.first_token(token, self.now)
            assert self.loads.first_token(token, self.now) is None

    @rule(source=st.data())
    def release(self, source: st.DataObject) -> None:
        if self.tokens:
            token = source.draw(st.sampled_from(self.tokens))
            self.loads.release(token)
            assert self.loads.release(token) is None

    @rule(replica=st.sampled_from(REPLICAS), backlog=st.integers(0, 999))
    def report(self, replica: str, backlog: int) -> None:
        if replica in self.present:
            self.loads.on_gauge(replica, gauge(backlog), self.now)

    @rule(step=st.sampled_from([0.01, 0.2, 5.0]))
    def wait(self, step: float) -> None:
        self.now += step
        self.loads.sweep(self.now)

    @invariant()
    def sums_hold(self) -> None:
        self.loads.check_integrity()

    def teardown(self) -> None:
        """At rest every sum is zero."""
        for token in self.tokens:
            self.loads.release(token)
        assert len(self.loads) == 0
        for replica in self.present:
            load = self.loads[replica]
            assert (load.prefill_tokens, load.fresh_tokens, load.fresh, load.inflight_blocks) == (0, 0, {}, set())


TestLoadsAgainstModel = LoadsAgainstModel.TestCase
TestLoadsAgainstModel.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)


@pytest.fixture
def loads() -> Loads:
    made = Loads()
    for replica in REPLICAS:
        made.add(replica)
    return made


def test_a_request_counts_at_once_and_is_not_counted_again_when_the_gauge_has_it(loads: Loads) -> None:
    """Between the choice and the next gauge our own knowledge fills in."""
    loads.on_gauge("a", gauge(500, running=1), 0.0)
    loads.reserve(reservation(at=0.0))
    assert loads["a"].backlog_tokens == 560
    assert loads["a"].running == 2
    loads.on_gauge("a", gauge(500), LOAD_SETTLE_S / 2)
    assert loads["a"].backlog_tokens == 560
    loads.on_gauge("a", gauge(560, running=1, waiting=1), LOAD_SETTLE_S * 2)
    assert loads["a"].backlog_tokens == 560
    assert loads["a"].running == 2


def test_a_request_that_has_ended_is_not_in_the_way_of_its_sessions_next_turn(loads: Loads) -> None:
    """Which comes before the gauge that knows of the end, or just after one that does not. What others have stays."""
    token = loads.reserve(reservation(at=1.0))
    loads.on_gauge("a", gauge(0, running=3), now=1.05)
    loads.release(token)
    loads.ended("a", 1.06)
    assert loads["a"].running == 2
    loads.on_gauge("a", gauge(0, running=3), now=1.07)
    assert loads["a"].running == 2
    loads.on_gauge("a", gauge(0, running=2), now=1.07 + LOAD_SETTLE_S)
    assert loads["a"].running == 2


def test_own_requests_without_a_first_token_are_a_floor_of_the_backlog(loads: Loads) -> None:
    """A gauge that has not heard of them does not make them vanish."""
    token = loads.reserve(reservation(at=0.0))
    loads.on_gauge("a", gauge(0), 5.0)
    assert loads["a"].backlog_tokens == 60
    loads.first_token(token, 0.0)
    assert loads["a"].backlog_tokens == 0
    assert loads["a"].running == 1
    loads.release(token)
    assert loads["a"].running == 0


def test_reservation_ttl_stops_requests_that_are_never_finished(loads: Loads) -> None:
    """They are swept, counted as lost, and a late finish says nothing."""
    old, new = loads.reserve(reservation(at=0.0)), loads.reserve(reservation(at=10.0))
    loads.sweep(RESERVATION_TTL_S + 1)
    assert loads.find(old) is None
    assert loads.find(new) is not None
    assert loads.release(old) is None
    assert repr(loads) == "<Loads replicas=2 open=1 lost=1>"


def test_max_reservations_stops_an_endless_ledger(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes first."""
    monkeypatch.setattr(load_module, "MAX_RESERVATIONS", 2)
    tokens = [loads.reserve(reservation()) for _ in range(3)]
    assert [loads.find(token) is not None for token in tokens] == [False, True, True]
    assert loads.lost == 1
    loads.check_integrity()


def test_a_replica_that_left_and_came_back_starts_without_load(loads: Loads) -> None:
    """Requests of before are released without touching the new account."""
    token, other = loads.reserve(reservation()), loads.reserve(reservation())
    loads.drop("a")
    loads.first_token(other, 0.0)
    loads.add("a")
    loads.first_token(token, 0.0)
    loads.release(token)
    loads.release(other)
    assert loads["a"].backlog_tokens == 0
    assert len(loads) == 0
    loads.check_integrity()


def test_check_integrity_notices_a_sum_that_is_off(loads: Loads) -> None:
    """The check is one that can fail."""
    loads.reserve(reservation())
    loads["a"].prefill_tokens += 1
    with pytest.raises(KvistBug, match="not the sum"):
        loads.check_integrity()


def test_what_is_our_own_is_worked_on_from_when_it_came_or_the_one_before_it_was_done(loads: Loads) -> None:
    """At the learnt rate; it is never taken for done before its first token."""
    first = loads.reserve(reservation(tokens=1_000, cached=0, at=10.0))
    loads.reserve(reservation(tokens=500, cached=0, at=11.0))
    load = loads["a"]
    assert load.left_tokens(100.0, 12.0) == 1_300
    assert load.ahead(1_300) == [800, 500]
    assert load.left_tokens(100.0, 60.0) == 2
    loads.first_token(first, 20.0)
    assert load.left_tokens(100.0, 21.0) == 400


def test_what_a_gauge_counts_beyond_our_own_requests_is_somebody_elses(loads: Loads) -> None:
    """It stands first, and does not shrink until the gauge says so."""
    loads.reserve(reservation(tokens=1_000, cached=0, at=10.0))
    loads.on_gauge("a", gauge(5_000, running=1, waiting=1), 10.0 + 2 * LOAD_SETTLE_S)
    assert loads["a"].left_tokens(100.0, 12.0) == 4_800
    assert loads["a"].ahead(4_800) == [3_800, 1_000]
    loads.on_gauge("a", gauge(5_000, waiting=1), 12.0)
    assert loads["a"].left_tokens(100.0, 12.0) == 800


def test_overdue_s_stops_more_prompts_from_joining_a_stuck_one(loads: Loads) -> None:
    """A prefill may take twice as long as expected and a little; then its replica is late, until it is done."""
    token = loads.reserve(msgspec.structs.replace(reservation(at=10.0), expected_s=3.0))
    loads.sweep(16.0 + OVERDUE_S)
    assert loads["a"].overdue_s == 0.0
    loads.sweep(20.0 + OVERDUE_S)
    assert loads["a"].overdue_s == 4.0
    loads.first_token(token, 21.0)
    loads.sweep(22.0)
    assert loads["a"].overdue_s == 0.0


def test_a_later_prompt_that_is_done_first_is_noted_for_those_it_overtook(loads: Loads) -> None:
    """What is learnt of the rate counts its work."""
    tokens = [loads.reserve(reservation(tokens=size, cached=0)) for size in (900, 30, 20)]
    loads.first_token(tokens[1], 1.0)
    overtaken = [one.overtaken_tokens for token in tokens if (one := loads.find(token)) is not None]
    assert overtaken == [30, 0, 0]


def test_seen_s_stops_one_moment_from_saying_how_many_ingresses_there_are(loads: Loads) -> None:
    """Replicas tell of twice as many requests as we sent: another ingress is there, for as long as that lasts."""
    assert loads.our_part == 1.0
    loads.reserve(reservation(at=0.0))
    for step in range(1, 100):
        loads.on_gauge("a", gauge(0, running=2), step * SEEN_S / 10)
        loads.sweep(step * SEEN_S / 10)
    assert loads.our_part == pytest.approx(0.5, abs=0.02)
    loads.on_gauge("a", gauge(0, running=9), 10 * SEEN_S)
    loads.sweep(10 * SEEN_S)
    assert loads.our_part > 0.3
