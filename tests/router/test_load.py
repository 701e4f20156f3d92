"""Loads are the sum of the open reservations, and nothing is counted twice or for ever."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router import load as load_module
from router.errors import KvistBug
from router.limits import LOAD_SETTLE_S, RATE_HIGH, RATE_LOW, RESERVATION_TTL_S
from router.load import RATE_DEFAULT, Loads, PrefillRate, Reservation
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
            self.loads.first_token(token)
            assert self.loads.first_token(token) is None

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


def test_own_requests_without_a_first_token_are_a_floor_of_the_backlog(loads: Loads) -> None:
    """A gauge that has not heard of them does not make them vanish."""
    token = loads.reserve(reservation(at=0.0))
    loads.on_gauge("a", gauge(0), 5.0)
    assert loads["a"].backlog_tokens == 60
    loads.first_token(token)
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
    loads.first_token(other)
    loads.add("a")
    loads.first_token(token)
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


def test_the_prefill_rate_follows_what_is_seen_within_bounds() -> None:
    """Slowly, unmoved by one outlier or by requests too small to tell. RATE_LOW and RATE_HIGH stop absurd times from
    making all replicas look equally bad, or all waiting free."""
    rate = PrefillRate()
    rate.observe(tokens=10, elapsed_s=1.0)
    rate.observe(tokens=10_000, elapsed_s=0.0)
    assert rate.tokens_per_s == RATE_DEFAULT
    rate.observe(tokens=10_000, elapsed_s=1e-9)
    assert rate.tokens_per_s <= RATE_DEFAULT * 1.31
    for _ in range(500):
        rate.observe(tokens=50_000, elapsed_s=1.0)
    assert rate.tokens_per_s == pytest.approx(50_000, rel=0.01)
    for _ in range(500):
        rate.observe(tokens=50_000, elapsed_s=1e9)
    assert rate.tokens_per_s == RATE_LOW
    for _ in range(500):
        rate.observe(tokens=50_000, elapsed_s=1e-9)
    assert rate.tokens_per_s == RATE_HIGH
    assert repr(rate) == "<PrefillRate 10000000 tokens/s>"
