"""Live sessions: who will come back, and what its blocks are."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router import live as live_module
from router.errors import KvistBug
from router.limits import LIVE_HIGH_S, LIVE_LOW_S, SESSION_FORGOTTEN_S
from router.live import LIVE_DEFAULT_S, LiveSessions

NAMES = st.sampled_from(["", "a", "b", "c", "d"])
REPLICAS = st.sampled_from(["r", "s"])


class LiveAgainstSums(RuleBasedStateMachine):
    """Whatever happens, sums are sums and nobody is alive for longer than is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.live = LiveSessions()
        self.now = 0.0

    @rule(name=NAMES, replica=REPLICAS, tokens=st.integers(0, 100), cached=st.integers(0, 100))
    def note(self, name: str, replica: str, tokens: int, cached: int) -> None:
        self.live.note(name, replica, tokens=tokens, cached_tokens=cached, now=self.now)
        assert self.live.is_alive(name) == bool(name)

    @rule(name=NAMES)
    def touch(self, name: str) -> None:
        self.live.touch(name, self.now)

    @rule(name=NAMES, replica=REPLICAS)
    def move(self, name: str, replica: str) -> None:
        self.live.move(name, replica)

    @rule(replica=REPLICAS)
    def drop(self, replica: str) -> None:
        self.live.drop(replica)
        assert self.live.tokens_on(replica) == 0

    @rule(step=st.sampled_from([0.1, 30.0, 5_000.0]))
    def wait(self, step: float) -> None:
        self.now += step
        self.live.refresh(self.now)

    @invariant()
    def sums_hold(self) -> None:
        self.live.check_integrity()
        assert self.live.total_tokens == self.live.tokens_on("r") + self.live.tokens_on("s")


TestLiveAgainstSums = LiveAgainstSums.TestCase
TestLiveAgainstSums.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)


def noted(live: LiveSessions, name: str, now: float, *, tokens: int = 100, cached: int = 0) -> None:
    live.note(name, "r", tokens=tokens, cached_tokens=cached, now=now)


def test_a_session_is_alive_until_most_that_return_would_have() -> None:
    live = LiveSessions()
    noted(live, "a", 0.0)
    live.refresh(LIVE_DEFAULT_S - 1)
    assert live.is_alive("a")
    assert live.tokens_on("r") == 100
    live.refresh(LIVE_DEFAULT_S + 1)
    assert not live.is_alive("a")
    assert (live.tokens_on("r"), len(live)) == (0, 0)


def test_the_end_of_an_answer_counts_as_a_sign_of_life() -> None:
    """Long answers do not make a session dead."""
    live = LiveSessions()
    noted(live, "a", 0.0)
    live.touch("a", 50.0)
    live.refresh(LIVE_DEFAULT_S + 1)
    assert live.is_alive("a")


@pytest.mark.parametrize(("gap_s", "low", "high"), [(300.0, 250.0, 450.0), (15.0, 10.0, 20.0)])
def test_how_long_sessions_are_alive_is_learnt_from_those_that_return(gap_s: float, low: float, high: float) -> None:
    """Slow tools make long lives, fast ones short lives."""
    live = LiveSessions()
    for turn in range(600):
        noted(live, "a", turn * gap_s)
    assert low < live.alive_s < high
    assert live.return_share > 0.9


def test_live_low_s_and_live_high_s_stop_lives_of_no_length_and_without_end() -> None:
    for gap_s, bound_s in ((0.01, LIVE_LOW_S), (SESSION_FORGOTTEN_S - 1, LIVE_HIGH_S)):
        live = LiveSessions()
        for turn in range(3_000):
            noted(live, "a", turn * gap_s)
        assert live.alive_s == bound_s


def test_session_forgotten_s_stops_a_return_after_days_from_teaching_anything() -> None:
    live = LiveSessions()
    noted(live, "a", 0.0)
    noted(live, "a", 2 * SESSION_FORGOTTEN_S)
    assert live.alive_s == LIVE_DEFAULT_S


def test_sessions_that_never_return_are_seen() -> None:
    """Open-loop traffic: everybody is new."""
    live = LiveSessions()
    for at in range(1_000):
        noted(live, str(at), float(at))
    assert live.return_share < 0.1
    assert live.open_share > 0.8


def test_a_head_that_others_brought_in_is_not_a_sessions_own() -> None:
    """A system prompt of all sessions is in the pool once."""
    live = LiveSessions()
    noted(live, "a", 0.0, tokens=5_100, cached=0)
    noted(live, "b", 0.0, tokens=5_100, cached=5_000)
    noted(live, "b", 1.0, tokens=5_600, cached=5_100)
    assert live.total_tokens == 5_100 + 600


def test_max_sessions_stops_clients_from_filling_memory_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MAX_SESSIONS", 3)
    live = LiveSessions()
    for at in range(10):
        noted(live, str(at), 0.0)
    assert [live.is_alive(str(at)) for at in range(6, 10)] == [False, True, True, True]
    live.check_integrity()
    noted(live, "x", 2 * LIVE_DEFAULT_S)
    live.check_integrity()


def test_check_integrity_notices_a_sum_that_is_off() -> None:
    live = LiveSessions()
    noted(live, "a", 0.0)
    live.total_tokens += 1
    with pytest.raises(KvistBug, match="not the sum"):
        live.check_integrity()
    assert repr(LiveSessions()) == "<LiveSessions 0 alive, 0 tokens, for 60 s>"
