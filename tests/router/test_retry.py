"""Attempts after an engine's fault are a share of the traffic, whatever fails and however often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import KvistBug
from router.limits import MAX_RETRIES, RETRY_FLOOR, RETRY_SHARE, RETRY_WINDOW_S
from router.retry import RetryBudget, Tenacity

steps = st.lists(st.tuples(st.sampled_from(["start", "end", "take"]), st.floats(0.0, 4.0)), max_size=300)


@given(steps)
def test_an_attempt_is_granted_exactly_while_the_share_of_the_two_windows_allows_it(
    history: list[tuple[str, float]],
) -> None:
    """Against a model that remembers every request and every grant with its time."""
    budget, now, running = RetryBudget(), 0.0, 0
    ended: list[int] = []
    granted: list[int] = []
    for step, pause_s in history:
        now += pause_s
        window = int(now // RETRY_WINDOW_S)
        if step == "start":
            budget.started()
            running += 1
        elif step == "end" and running:
            budget.ended(now)
            running -= 1
            ended.append(window)
        elif step == "take":
            requests = running + sum(other >= window - 1 for other in ended)
            spent = sum(other >= window - 1 for other in granted)
            allowed = spent + 1 <= max(RETRY_FLOOR, RETRY_SHARE * requests)
            assert budget.take(now) == allowed
            granted += [window] * allowed
        budget.check_integrity()


def test_when_every_attempt_fails_there_are_at_most_a_fifth_more_of_them_than_requests() -> None:
    """RETRY_SHARE, RETRY_FLOOR and MAX_RETRIES stop a failing cluster from being hammered: 10,000 requests in 100 s,
    one after the other or 50 at a time, all of whose attempts fail, make no more than 1.2 attempts each."""
    for at_once in (1, 50):
        budget, attempts = RetryBudget(), 0
        for request in range(0, 10_000, at_once):
            now = request / 100
            for _ in range(at_once):
                budget.started()
            for _ in range(at_once):
                attempts += 1
                for _ in range(MAX_RETRIES):
                    attempts += budget.take(now)
            for _ in range(at_once):
                budget.ended(now)
        assert attempts <= 10_000 * (1 + RETRY_SHARE) + RETRY_FLOOR
        assert attempts > 10_000 * 1.15


def test_retry_floor_lets_a_quiet_cluster_try_again_and_retry_window_s_stops_it_from_never_trying_again() -> None:
    """Without any other traffic."""
    budget = RetryBudget()
    budget.started()
    assert [budget.take(0.0) for _ in range(RETRY_FLOOR + 1)] == [True] * RETRY_FLOOR + [False]
    assert not budget.take(RETRY_WINDOW_S)
    assert budget.take(2 * RETRY_WINDOW_S)


def test_what_ended_without_having_begun_is_noticed() -> None:
    budget = RetryBudget()
    budget.ended(0.0)
    with pytest.raises(KvistBug, match="had not begun"):
        budget.check_integrity()
    assert "granted=0" in repr(budget)


def test_unless_told_otherwise_a_generation_goes_elsewhere_twice_before_and_twice_after_its_first_token() -> None:
    assert Tenacity() == (MAX_RETRIES, 2)
