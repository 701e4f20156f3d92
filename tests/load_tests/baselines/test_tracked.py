"""The book-keeping that all baselines share."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from load_tests.baselines.tracked import Tracked
from load_tests.policies import KVIST, POLICY_NAMES, policy_named
from router.errors import InvalidRequest, KvistBug, NoReplica
from tests.load_tests.baselines.cases import asked, chain, frame, joined, spec

BASELINES = [name for name in POLICY_NAMES if name != KVIST]
REPLICAS = ("a", "b", "c")


def baseline(name: str) -> Tracked:
    rule = policy_named(name, seed=1)
    assert isinstance(rule, Tracked)
    return rule


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match=r"no policy 'best': choose from random, .*sglang, dynamo"):
        policy_named("best", seed=1)


def test_kvists_own_router_is_one_of_them() -> None:
    rule = policy_named(KVIST, seed=1)
    rule.join(spec("a"), 0.0)
    assert rule.place(asked(1, chain(1, 5)), 0.0) == "a"


@pytest.mark.parametrize("name", BASELINES)
def test_without_a_replica_there_is_no_choice(name: str) -> None:
    with pytest.raises(NoReplica):
        baseline(name).place(asked(1), 0.0)


@pytest.mark.parametrize("name", BASELINES)
def test_a_single_replica_takes_everything(name: str) -> None:
    rule = joined(baseline(name), "a")
    assert {rule.place(asked(number, chain(number, 5)), 0.0) for number in range(20)} == {"a"}


@pytest.mark.parametrize("name", BASELINES)
def test_the_same_seed_makes_the_same_choices(name: str) -> None:
    rules = [joined(baseline(name), *REPLICAS) for _ in range(2)]
    first, second = ([rule.place(asked(number, chain(number, 5)), 0.0) for number in range(50)] for rule in rules)
    assert first == second


@pytest.mark.parametrize("name", BASELINES)
def test_a_replica_that_left_gets_nothing_and_its_requests_are_forgotten(name: str) -> None:
    rule = joined(baseline(name), *REPLICAS)
    for number in range(9):
        rule.place(asked(number, chain(number % 3, 5)), 0.0)
    rule.leave("b", 1.0)
    rule.on_frame("b", frame("b", stored=chain(1, 5)), 1.0)
    assert "b" not in {rule.place(asked(100 + number, chain(number % 3, 5)), 2.0) for number in range(30)}
    rule.check_integrity()


@pytest.mark.parametrize("name", BASELINES)
def test_a_request_that_is_placed_again_counts_once(name: str) -> None:
    rule = joined(baseline(name), *REPLICAS)
    rule.place(asked(1, chain(1, 5)), 0.0)
    rule.place(asked(1, chain(1, 5)), 1.0)
    assert sum(rule._in_flight.values()) == 1
    rule.check_integrity()


@pytest.mark.parametrize("name", BASELINES)
def test_a_replica_that_joins_again_is_empty_and_idle(name: str) -> None:
    rule = joined(baseline(name), "a", "b")
    for number in range(6):
        rule.put(asked(number, chain(1, 5)), "a", 0.0)
    rule.join(spec("a"), 1.0)
    assert rule._in_flight["a"] == 0
    rule.check_integrity()


def test_counts_that_requests_do_not_explain_are_a_bug() -> None:
    rule = joined(baseline("random"), "a")
    rule._in_flight["a"] += 1
    with pytest.raises(KvistBug):
        rule.check_integrity()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["place", "first_token", "finish", "leave", "join", "stored", "removed"]),
        st.integers(0, 9),
        st.sampled_from(REPLICAS),
        st.integers(0, 8),
    ),
    max_size=60,
)


@pytest.mark.parametrize("name", BASELINES)
@given(steps=STEPS)
@settings(max_examples=15, deadline=None)
def test_whatever_happens_the_books_agree_with_the_requests(name: str, steps: list[tuple[str, int, str, int]]) -> None:
    rule = joined(baseline(name), *REPLICAS)
    known, now = set(REPLICAS), 0.0
    for step, number, replica, blocks in steps:
        now += 50.0
        match step:
            case "place" if known:
                assert rule.place(asked(number, chain(number % 2, blocks)), now) in known
            case "first_token":
                rule.first_token(number, cached_tokens=0, now=now)
            case "finish":
                rule.finish(number, now)
            case "leave":
                rule.leave(replica, now)
                known.discard(replica)
            case "join":
                rule.join(spec(replica), now)
                known.add(replica)
            case "stored":
                rule.on_frame(replica, frame(replica, stored=chain(number % 2, blocks)), now)
            case "removed":
                rule.on_frame(replica, frame(replica, removed=chain(number % 2, 8)[blocks:]), now)
        rule.check_integrity()
    for number in range(10):
        rule.finish(number, now)
    assert not any(rule._in_flight.values())
    rule.check_integrity()
