"""What is learnt online: it finds the truth, bounds absurdities, and forgets."""

from __future__ import annotations

import math
import random

import pytest

from router.limits import ARRIVALS_S, MAX_BUSY_SHARE, RATE_HIGH, RATE_LOW, SLOWNESS_FORGOTTEN_S, SLOWNESS_MAX
from router.rates import RATE_DEFAULT, SLOWNESS_NOISE, Arrivals, Observed, Paces, Slowness
from router.step_rule import StepRule


def test_the_prefill_rate_follows_what_is_seen_within_bounds() -> None:
    """Slowly, unmoved by one outlier or by requests too small to tell. RATE_LOW and RATE_HIGH stop absurd times from
    making all replicas look equally bad, or all waiting free."""
    paces, replica = Paces(), Slowness()

    def see(tokens: int, elapsed_s: float, times: int = 1) -> None:
        for _ in range(times):
            paces.observe(Observed(tokens, 1, 0, elapsed_s), replica, 0.0)

    see(10, 1.0)
    see(10_000, 0.0)
    assert paces.tokens_per_s == RATE_DEFAULT
    see(10_000, 1e-9)
    assert paces.tokens_per_s == pytest.approx(RATE_DEFAULT * 4), "the guess is given up soon, not at once"
    see(50_000, 1.0, 500)
    assert paces.tokens_per_s == pytest.approx(50_000, rel=0.01)
    see(10_000, 1e-9)
    assert paces.tokens_per_s < 50_000 * 1.31
    see(50_000, 1e9, 500)
    assert paces.tokens_per_s == RATE_LOW
    see(50_000, 1e-9, 500)
    assert paces.tokens_per_s == RATE_HIGH


def test_the_first_replica_tried_is_given_nothing_for_a_wrong_guess() -> None:
    """All are ten times as fast as the guess, and one is seen first: nobody is slow, and nobody is preferred."""
    paces, first, second = Paces(), Slowness(), Slowness()
    for replica in (first, second):
        for _ in range(30):
            paces.observe(Observed(20_000, 3, 0, 0.2), replica, 0.0)
            assert (first.factor, second.factor) == (1.0, 1.0)
    assert paces.tokens_per_s == pytest.approx(10 * RATE_DEFAULT, rel=0.1)


def test_decodes_are_told_from_prefill() -> None:
    """A step of 30 ms and 0.5 ms per decode, 10,000 tokens per second: both are found, from noise."""
    paces, replica, chosen = Paces(), Slowness(), random.Random(1)
    for _ in range(3_000):
        running, tokens = chosen.randrange(60), chosen.choice([300, 700, 20_000])
        steps = max(1, tokens // 8_192)
        elapsed_s = tokens / 12_000 + steps * (0.03 + running * 0.0005) * chosen.uniform(0.7, 1.3)
        paces.observe(Observed(tokens, steps, running, elapsed_s), replica, 0.0)
    assert paces.decode_s == pytest.approx(0.0005, abs=0.0003)
    assert paces.tokens_per_s == pytest.approx(12_000, rel=0.2)
    assert replica.factor == 1.0


def test_a_slow_replica_is_noticed_after_a_few_prompts_and_forgotten_in_time() -> None:
    """SLOWNESS_FORGOTTEN_S stops a replica from being avoided for ever for what it was."""
    slow = Slowness()
    for _ in range(4):
        slow.observe(5.0, 10.0)
    assert slow.factor > 2.5
    slow.refresh(10.0 + 4 * SLOWNESS_FORGOTTEN_S)
    assert slow.factor == 1.0


def test_chance_makes_no_replica_slow_and_slowness_max_stops_absurd_ones() -> None:
    """Within SLOWNESS_NOISE all are alike; a stuck prompt does not make a replica slower than SLOWNESS_MAX."""
    slow = Slowness()
    for ratio in (1.2, 0.9, 1.25, 0.8):
        slow.observe(ratio, 0.0)
        assert slow.factor == 1.0
    assert SLOWNESS_NOISE > 1.2
    for _ in range(100):
        slow.observe(1e9, 0.0)
    assert slow.factor == pytest.approx(SLOWNESS_MAX)


def test_arrivals_s_stops_the_distant_past_from_counting() -> None:
    """A rate is that of the last minute; without arrivals it fades. MAX_BUSY_SHARE stops a division by nothing."""
    arrivals = Arrivals()
    for second in range(600):
        arrivals.note(0.25, float(second))
    assert arrivals.per_s == pytest.approx(1.0, rel=0.02)
    assert arrivals.busy_share == pytest.approx(0.25, rel=0.02)
    arrivals.refresh(599.0 + ARRIVALS_S)
    assert arrivals.per_s == pytest.approx(math.exp(-1), rel=0.02)
    for second in range(600, 700):
        arrivals.note(5.0, float(second))
    assert arrivals.busy_share == MAX_BUSY_SHARE


def test_the_share_of_short_prompts_is_learnt_where_steps_are_shared() -> None:
    """First come first served, nobody is short."""
    shared, first_come = Paces(), Paces()
    for at in range(500):
        shared.note_prompt(500 if at % 4 else 50_000, StepRule(8_192, 4_096))
        first_come.note_prompt(500, StepRule(8_192, 0))
    assert shared.short_share == pytest.approx(0.75, abs=0.1)
    assert first_come.short_share == 0.0
