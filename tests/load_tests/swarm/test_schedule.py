"""When requests are due: fixed before the first answer, whatever an endpoint does."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.swarm.agents import Agents
from load_tests.swarm.named import FAMILIES, HOT_SESSIONS, HOT_TURNS, SIBLINGS, Fork, HotPrefix
from load_tests.swarm.scenario import Ask, Session, Turn, requests_of
from load_tests.swarm.schedule import agent_starts, due_times, rotation, scaled_times
from load_tests.swarm.settings import Settings
from tests.load_tests.swarm.entries import CALM

RATES = st.floats(0.1, 200)


class Plain:
    """Sessions of as many turns as `lengths` say, without texts."""

    at_once = None

    def __init__(self, lengths: list[int], *, is_endless: bool = False) -> None:
        self._lengths = lengths
        self.total = None if is_endless else len(lengths)

    def session(self, number: int) -> Session:
        turn = Turn(content=Ask(""), think_s=0.0, max_tokens=1)
        return Session(number=number, turns=(turn,) * self._lengths[number % len(self._lengths)])


def times(
    *, rate: float, ramp_s: float = 0.0, end_s: float = 30.0, seed: int = 0, arrivals: str = "poisson"
) -> list[float]:
    rng = random.Random(seed)
    return list(due_times(rate=rate, ramp_s=ramp_s, end_s=end_s, arrivals=arrivals, rng=rng))  # type: ignore[arg-type]


@CALM
@given(rate=RATES, ramp_s=st.floats(0, 20), seed=st.integers(0, 1000), arrivals=st.sampled_from(["poisson", "even"]))
def test_times_rise_and_end_before_the_end(rate: float, ramp_s: float, seed: int, arrivals: str) -> None:
    found = times(rate=rate, ramp_s=ramp_s, end_s=10.0, seed=seed, arrivals=arrivals)
    assert found == sorted(found)
    assert all(0 <= due_s < 10.0 for due_s in found)


@CALM
@given(rate=RATES, ramp_s=st.floats(0, 20))
def test_even_arrivals_are_as_many_as_the_area_under_the_rate(rate: float, ramp_s: float) -> None:
    """A ramp costs half of its own arrivals."""
    end_s = 30.0
    expected = rate * (end_s - ramp_s / 2)
    assert abs(len(times(rate=rate, ramp_s=ramp_s, end_s=end_s, arrivals="even")) - expected) <= 1


@CALM
@given(seed=st.integers(0, 100))
def test_the_same_seed_gives_the_same_times(seed: int) -> None:
    assert times(rate=20, seed=seed) == times(rate=20, seed=seed)
    assert times(rate=20, seed=seed) != times(rate=20, seed=seed + 1)


def test_poisson_arrivals_come_at_the_rate() -> None:
    """A thousand expected; six standard deviations around."""
    assert 810 < len(times(rate=100, end_s=10.0)) < 1190


@CALM
@given(agents=st.integers(1, 500), ramp_s=st.floats(0, 100))
def test_agents_start_spread_over_the_ramp(agents: int, ramp_s: float) -> None:
    starts = agent_starts(agents, ramp_s=ramp_s)
    assert len(starts) == agents
    assert starts[0] == 0.0
    assert starts == sorted(starts)
    assert starts[-1] <= ramp_s


@CALM
@given(st.lists(st.floats(0, 1e5), min_size=2, max_size=50, unique=True).map(sorted), RATES)
def test_a_traces_times_keep_their_shape_at_another_rate(times_s: list[float], rate: float) -> None:
    """First at 0, gaps in proportion, the mean rate as asked for."""
    found = scaled_times(times_s, rate=rate)
    span_s = times_s[-1] - times_s[0]
    assert found[0] == 0.0
    assert found[-1] == pytest.approx(len(times_s) / rate)
    for before, after in zip(times_s, found, strict=True):
        assert after / found[-1] == pytest.approx((before - times_s[0]) / span_s, abs=1e-9)


def test_a_traces_own_times_stay_without_a_rate() -> None:
    assert scaled_times([5.0, 6.5, 9.0], rate=None) == [0.0, 1.5, 4.0]
    assert scaled_times([7.0], rate=3.0) == [0.0]


@CALM
@given(width=st.integers(1, 12), lengths=st.lists(st.integers(1, 6), min_size=1, max_size=9))
def test_a_rotation_plays_every_turn_of_every_session_once_and_in_order(width: int, lengths: list[int]) -> None:
    played = [(session.number, at) for session, at, _ in rotation(Plain(lengths), width=width)]
    assert sorted(played) == [(number, at) for number, length in enumerate(lengths) for at in range(length)]
    for number in range(len(lengths)):
        own = [at for one, at in played if one == number]
        assert own == sorted(own)


def test_a_rotation_keeps_its_width_open_and_has_no_end() -> None:
    """No session makes a second request before each of the others that are open made one."""
    found = [session.number for session, _, _ in itertools.islice(rotation(Plain([3], is_endless=True), width=5), 300)]
    assert found[:15] == [0, 1, 2, 3, 4] * 3
    assert set(Counter(found).values()) == {3}


class TestSessions:
    """What agents do is the same on every run."""

    @pytest.mark.parametrize(("seed", "number"), [(0, 0), (0, 7), (3, 2)])
    def test_a_session_follows_from_the_settings_and_its_number(self, seed: int, number: int) -> None:
        settings = Settings(seed=seed, heads=2, tools=1, system_chars=100)
        assert Agents(settings).session(number) == Agents(settings).session(number)
        assert Agents(settings).session(number) != Agents(settings).session(number + 1)

    def test_sub_agents_are_started_only_where_the_next_turn_joins_them(self) -> None:
        agents = Agents(Settings(fork_share=1.0, turns=4, heads=1, tools=1, system_chars=100))
        for number in range(20):
            *_, last = agents.session(number).turns
            assert not last.branches
        assert any(turn.branches for turn in agents.session(0).turns) or len(agents.session(0).turns) <= 2

    def test_the_share_of_cut_requests_is_as_asked_for(self) -> None:
        agents = Agents(Settings(cancel_share=0.25, turns=10, heads=1, tools=1, system_chars=100))
        cuts = [turn.cut_after for number in range(100) for turn in agents.session(number).turns]
        assert 0.18 < sum(cut is not None for cut in cuts) / len(cuts) < 0.32
        assert {cut == 0 for cut in cuts if cut is not None} == {True, False}

    def test_kinds_of_agents_share_no_beginning_and_their_own_share_all_of_it(self) -> None:
        agents = Agents(Settings(heads=3, tools=2, system_chars=200, salt="a"))
        heads = [agents.session(number).head for number in range(30)]
        texts = {head.system for head in heads if head is not None}
        assert len(texts) == 3
        assert len({text[:40] for text in texts}) == 3

    def test_a_salt_makes_all_texts_new(self) -> None:
        one, other = (Agents(Settings(heads=1, tools=1, system_chars=200, salt=salt)).session(0) for salt in "ab")
        assert one.turns == other.turns
        assert one.head is not None
        assert other.head is not None
        assert one.head.system[:30] != other.head.system[:30]
        assert one.head.tools[0]["description"][:30] != other.head.tools[0]["description"][:30]

    def test_named_scenarios_have_the_sizes_they_are_known_by(self) -> None:
        """64 sessions of 3 turns on one head; families of one parent and six siblings."""
        hot, fork = HotPrefix(Settings()), Fork(Settings())
        assert hot.total == HOT_SESSIONS == 64
        assert {requests_of(hot.session(number).turns) for number in range(64)} == {HOT_TURNS}
        assert len({str(hot.session(number).head) for number in range(3)}) == 1
        assert fork.total == FAMILIES
        assert len(fork.session(0).turns[0].branches) == SIBLINGS == 6
