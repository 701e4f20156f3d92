"""Shares of tenants: what passes, what waits and for how long."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.quotas import MINUTE_S, Quotas
from cluster.tenants import Tenant, TenantLimits
from router.errors import KvistBug, RateLimited

if TYPE_CHECKING:
    from collections.abc import Sequence


def tenant(name: str = "a", **limits: int) -> Tenant:
    return Tenant(name, "salt", TenantLimits(**limits))


def passes(quotas: Quotas, who: Tenant, now: float) -> bool:
    try:
        quotas.enter(who, now)
    except RateLimited:
        return False
    return True


def test_concurrent_requests_stops_one_more_until_one_ends() -> None:
    quotas, who = Quotas(), tenant(concurrent_requests=2)
    assert [passes(quotas, who, 0.0) for _ in range(3)] == [True, True, False]
    quotas.leave(who)
    assert passes(quotas, who, 0.0)


def test_one_tenants_share_is_not_anothers() -> None:
    quotas = Quotas()
    first, second = tenant("a", requests_per_minute=1), tenant("b", requests_per_minute=1)
    assert [passes(quotas, who, 0.0) for who in (first, first, second)] == [True, False, True]


def test_requests_per_minute_says_when_the_next_one_passes() -> None:
    quotas, who = Quotas(), tenant(requests_per_minute=6)
    assert [passes(quotas, who, 0.0) for _ in range(6)] == [True] * 6
    with pytest.raises(RateLimited, match="6 requests per minute of a; try again in 10 s") as refused:
        quotas.enter(who, 0.0)
    assert not passes(quotas, who, refused.value.retry_after_s - 0.01)
    assert passes(quotas, who, refused.value.retry_after_s + 0.01)


def test_prompt_tokens_per_minute_stops_the_next_request_after_a_prompt_that_overdrew_it() -> None:
    quotas, who = Quotas(), tenant(prompt_tokens_per_minute=600)
    quotas.enter(who, 0.0)
    quotas.spend(who, 1_200, 0.0)
    with pytest.raises(RateLimited, match="600 prompt tokens per minute") as refused:
        quotas.enter(who, 0.0)
    assert refused.value.retry_after_s == pytest.approx(60)
    assert not passes(quotas, who, 59.0)
    assert passes(quotas, who, 60.1)


def test_each_ingress_grants_its_part() -> None:
    quotas, who = Quotas(ingresses=2), tenant(concurrent_requests=3, requests_per_minute=4)
    assert [passes(quotas, who, 0.0) for _ in range(3)] == [True, True, False]


def test_who_has_no_limits_leaves_no_account_behind() -> None:
    quotas, who = Quotas(), tenant()
    for _ in range(100):
        quotas.enter(who, 0.0)
    assert repr(quotas) == "<Quotas tenants=1 running=100>"
    for _ in range(100):
        quotas.leave(who)
    assert repr(quotas) == "<Quotas tenants=0 running=0>"


def test_a_request_that_ends_twice_is_a_bug() -> None:
    quotas, who = Quotas(), tenant(requests_per_minute=9)
    quotas.enter(who, 0.0)
    quotas.leave(who)
    with pytest.raises(KvistBug):
        quotas.leave(who)


@given(
    per_minute=st.integers(1, 50),
    gaps_s=st.lists(st.floats(0, 30), min_size=1, max_size=200),
)
def test_in_no_span_of_time_do_more_pass_than_a_minutes_worth_and_what_refills(
    per_minute: int, gaps_s: Sequence[float]
) -> None:
    quotas, who, now = Quotas(), tenant(requests_per_minute=per_minute), 0.0
    passed: list[float] = []
    for gap_s in gaps_s:
        now += gap_s
        if passes(quotas, who, now):
            passed.append(now)
            quotas.leave(who)
    for start in range(len(passed)):
        span_s = passed[-1] - passed[start]
        assert len(passed) - start <= math.ceil(per_minute * (1 + span_s / MINUTE_S)) + 1e-6
