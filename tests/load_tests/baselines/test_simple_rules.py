"""Rules that look at no cache: `random`, `round-robin`, `least-loaded`, `two-choices`, `sticky`."""

from __future__ import annotations

from collections import Counter

from load_tests.baselines.least_loaded import LeastLoaded
from load_tests.baselines.random_choice import Random
from load_tests.baselines.round_robin import RoundRobin
from load_tests.baselines.sticky import RING_POINTS, Sticky
from load_tests.baselines.two_choices import TwoChoices
from tests.load_tests.baselines.cases import asked, chain, frame, joined, loaded


def test_random_gives_every_replica_its_share() -> None:
    rule = joined(Random(seed=1), "a", "b", "c", "d")
    counts = Counter(rule.place(asked(number), 0.0) for number in range(4_000))
    assert all(850 < count < 1_150 for count in counts.values())


def test_round_robin_goes_in_the_order_of_joining() -> None:
    rule = joined(RoundRobin(seed=1), "c", "a", "b")
    assert [rule.place(asked(number), 0.0) for number in range(5)] == ["c", "a", "b", "c", "a"]


def test_round_robin_goes_on_with_those_that_stay() -> None:
    rule = joined(RoundRobin(seed=1), "a", "b", "c")
    rule.leave("b", 0.0)
    assert [rule.place(asked(number), 0.0) for number in range(4)] == ["a", "c", "a", "c"]


def test_least_loaded_takes_the_fewest_requests_whatever_their_size_or_their_cache() -> None:
    rule = joined(LeastLoaded(seed=1), "a", "b", "c")
    rule.put(asked(1, chain(1, 500)), "a", 0.0)
    loaded(rule, {"b": 3, "c": 2})
    rule.on_frame("b", frame("b", stored=chain(2, 9)), 0.0)
    assert rule.place(asked(2, chain(2, 9)), 0.0) == "a"
    rule.finish(1_000_004, 0.0)
    rule.finish(1_000_005, 0.0)
    assert rule.place(asked(3), 0.0) == "c"


def test_least_loaded_settles_equal_ones_by_chance() -> None:
    chosen = {joined(LeastLoaded(seed=seed), "a", "b", "c").place(asked(1), 0.0) for seed in range(30)}
    assert chosen == {"a", "b", "c"}


def test_two_choices_never_takes_the_most_loaded_and_not_always_the_least() -> None:
    rule = joined(TwoChoices(seed=1), "a", "b", "c", "d")
    loaded(rule, {"a": 900, "b": 500})
    counts = Counter(rule.place(asked(number), 0.0) for number in range(200))
    assert counts["a"] == 0
    assert counts["b"] > 0
    assert counts["c"] + counts["d"] > counts["b"]


def test_sticky_keeps_a_session_on_its_replica() -> None:
    rule = joined(Sticky(seed=1), "a", "b", "c", "d")
    homes: dict[str, str] = {}
    for number in range(200):
        session = f"session-{number % 10}"
        home = rule.place(asked(number, session=session), 0.0)
        assert homes.setdefault(session, home) == home
        rule.finish(number, 0.0)
    assert len(set(homes.values())) > 1


def test_sticky_spreads_sessions_over_the_ring() -> None:
    rule = joined(Sticky(seed=1), *"abcd")
    counts: Counter[str] = Counter()
    for number in range(2_000):
        counts[rule.place(asked(number), 0.0)] += 1
        rule.finish(number, 0.0)
    assert all(count > 250 for count in counts.values())
    assert len(rule._ring) == 4 * RING_POINTS


def test_sticky_moves_only_the_sessions_of_a_replica_that_left() -> None:
    rule = joined(Sticky(seed=1), *"abcd")
    before = {}
    for number in range(300):
        before[number] = rule.place(asked(number), 0.0)
        rule.finish(number, 0.0)
    rule.leave("b", 0.0)
    for number, home in before.items():
        after = rule.place(asked(number), 0.0)
        rule.finish(number, 0.0)
        assert after != "b"
        assert home in {"b", after}


def test_sticky_passes_a_replica_with_a_quarter_more_than_its_share() -> None:
    """40 requests on 4 replicas: the bound is ⌈1.25 · 41 / 4⌉ = 13."""
    rule = joined(Sticky(seed=1), *"abcd")
    home = rule.place(asked(1, session="mine"), 0.0)
    rule.finish(1, 0.0)
    others = [name for name in "abcd" if name != home]
    loaded(rule, {home: 12} | dict(zip(others, (9, 9, 10), strict=True)))
    assert rule.place(asked(2, session="mine"), 0.0) == home
    rule.finish(1_000_040, 0.0)
    diverted = rule.place(asked(3, session="mine"), 0.0)
    assert diverted != home
    rule.finish(3, 0.0)
    assert rule.place(asked(4, session="mine"), 0.0) == diverted


def test_of_many_sessions_no_replica_ever_has_more_than_its_bound() -> None:
    rule = joined(Sticky(seed=1), *"abcdefgh")
    counts = Counter(rule.place(asked(number), 0.0) for number in range(800))
    assert max(counts.values()) <= 125
