"""How long a prompt waits under the engine's step rule: checked against steps played one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.limits import MAX_AHEAD
from router.step_rule import FIRST_COME, StepRule, ahead_tokens, left_of

RULES = st.sampled_from([StepRule(8, 4), StepRule(8, 3), StepRule(8, 8), StepRule(8, 0), StepRule(100, 7)])
PROMPTS = st.lists(st.integers(1, 200), max_size=6)


def played(rule: StepRule, ahead: list[int], tokens: int) -> int:
    """The rule itself: each step in order, until the last comer is done; what others computed until then."""
    left, computed = [*ahead, tokens], 0
    while left[-1]:
        room = rule.step_tokens
        for at, one in enumerate(left):
            part = min(one, room, rule.share_tokens or rule.step_tokens)
            left[at] -= part
            room -= part
            computed += part
    return computed - tokens


@given(RULES, PROMPTS, st.integers(1, 200))
@settings(deadline=None)
def test_the_wait_is_that_of_the_steps_played_one_by_one(rule: StepRule, ahead: list[int], tokens: int) -> None:
    """Exact where steps are shared among more than fit. Else it is a bound, exact but for the rest of the last step."""
    found, true = ahead_tokens(rule, ahead, tokens), played(rule, ahead, tokens)
    assert found <= sum(ahead)
    if rule.is_shared and (len(ahead) + 1) * rule.share_tokens > rule.step_tokens:
        assert found == true
    else:
        assert abs(found - true) <= rule.step_tokens
    assert found >= ahead_tokens(rule, ahead[1:], tokens) if rule == FIRST_COME else True


def test_a_warm_turn_behind_a_cold_prompt_waits_for_one_share_or_for_all_of_it() -> None:
    """500 new tokens behind 100,000: the reason why steps are shared."""
    assert ahead_tokens(StepRule(8_192, 4_096), [100_000], 500) == 4_096
    assert ahead_tokens(StepRule(8_192, 0), [100_000], 500) == 100_000


def test_a_third_long_prompt_waits_until_one_of_two_is_done() -> None:
    """Two shares fill a step: those who come after wait as if first come were first served."""
    assert ahead_tokens(StepRule(8, 4), [40, 400], 4) == 84
    assert ahead_tokens(StepRule(8, 4), [400, 40], 4) == 84


@given(RULES, PROMPTS, st.integers(1, 200), st.integers(0, 5))
@settings(deadline=None)
def test_more_ahead_is_never_less_wait(rule: StepRule, ahead: list[int], tokens: int, at: int) -> None:
    """Adding a prompt before a new one cannot help it, but for whole steps."""
    more = [*ahead[:at], 50, *ahead[at:]]
    assert ahead_tokens(rule, more, tokens) >= ahead_tokens(rule, ahead, tokens)


def test_a_prompt_takes_part_in_at_least_one_step() -> None:
    """Unknown rules have steps of any size."""
    assert [StepRule(8, 4).steps(tokens) for tokens in (0, 1, 4, 5)] == [1, 1, 1, 2]
    assert FIRST_COME.steps(10**9) == 1
    assert StepRule(8, 0).steps(9) == 2


@given(RULES, PROMPTS, st.integers(0, 1_500))
@settings(deadline=None)
def test_what_is_left_adds_up_to_the_backlog(rule: StepRule, prompts: list[int], backlog: int) -> None:
    """Whoever the work belongs to; nobody has more left than at first."""
    left = left_of(prompts, backlog, rule)
    assert sum(left) == backlog
    assert all(tokens > 0 for tokens in left)
    if backlog <= sum(prompts):
        assert len(left) <= len(prompts)


def test_those_who_came_first_have_been_worked_on() -> None:
    """The first alone where it takes all it can, the first two where a step has two shares."""
    assert left_of([100, 100, 100], 240, StepRule(8, 0)) == [40, 100, 100]
    assert left_of([100, 100, 100], 240, StepRule(8, 4)) == [70, 70, 100]
    assert left_of([100], 300, StepRule(8, 4)) == [200, 100]


def test_max_ahead_stops_a_long_queue_from_slowing_the_choice() -> None:
    """The last of it are taken as one."""
    left = left_of([10] * 100, 1_000, StepRule(8, 4))
    assert len(left) == MAX_AHEAD
    assert sum(left) == 1_000
    assert left[-1] == 10 * (100 - MAX_AHEAD + 1)


@pytest.mark.parametrize("rule", [StepRule(8, 4), StepRule(8, 0), FIRST_COME])
def test_nobody_ahead_is_no_wait(rule: StepRule) -> None:
    assert ahead_tokens(rule, [], 100) == 0
