"""`dynamo` and `dynamo-tuned`: the cost in blocks of 16 tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from load_tests.baselines.active_blocks import ActiveBlocks, shared_blocks
from load_tests.baselines.dynamo import TUNED, Dynamo
from tests.load_tests.baselines.cases import asked, chain, frame, joined, loaded


def test_an_idle_replica_costs_the_prompt_twice_to_prefill_and_to_decode() -> None:
    rule = joined(Dynamo(seed=1), "a")
    assert rule.costs(asked(1, chain(1, 10))) == {"a": 10 + 10}


def test_cached_blocks_are_credited() -> None:
    rule = joined(Dynamo(seed=1), "a", "b")
    rule.on_frame("a", frame("a", stored=chain(1, 4)), 0.0)
    assert rule.costs(asked(1, chain(1, 10))) == {"a": 6 + 10, "b": 10 + 10}


def test_tuned_prefill_weighs_32_times_and_a_cached_block_takes_half_a_block_of_load_away() -> None:
    rule = joined(Dynamo(seed=1, parameters=TUNED), "a", "b")
    rule.on_frame("a", frame("a", stored=chain(1, 4)), 0.0)
    assert rule.costs(asked(1, chain(1, 10))) == {"a": 32 * 4 + 10, "b": 32 * 10 + 10}


def test_credit_never_makes_a_prompt_cheaper_than_free() -> None:
    rule = joined(Dynamo(seed=1, parameters=TUNED), "a")
    rule.on_frame("a", frame("a", stored=chain(1, 10)), 0.0)
    assert rule.costs(asked(1, chain(1, 10))) == {"a": 10}


def test_a_request_costs_its_uncached_tokens_until_its_first_token_and_its_blocks_until_it_ends() -> None:
    rule = joined(Dynamo(seed=1), "a")
    rule.on_frame("a", frame("a", stored=chain(1, 4)), 0.0)
    rule.put(asked(1, chain(1, 10)), "a", 0.0)
    new = asked(2, chain(2, 3))
    assert rule.costs(new) == {"a": 6 + 3 + 10 + 3}
    rule.first_token(1, cached_tokens=64, now=1.0)
    assert rule.costs(new) == {"a": 3 + 10 + 3}
    rule.finish(1, 2.0)
    assert rule.costs(new) == {"a": 3 + 3}


def test_what_arrives_or_goes_later_does_not_change_what_a_request_was_charged() -> None:
    rule = joined(Dynamo(seed=1), "a")
    rule.put(asked(1, chain(1, 10)), "a", 0.0)
    rule.on_frame("a", frame("a", stored=chain(1, 10)), 0.0)
    assert rule.costs(asked(2, chain(2, 3))) == {"a": 10 + 3 + 10 + 3}


def test_blocks_that_requests_share_are_held_once() -> None:
    rule = joined(Dynamo(seed=1), "a")
    rule.put(asked(1, chain(1, 10)), "a", 0.0)
    rule.put(asked(2, chain(1, 6)), "a", 0.0)
    rule.first_token(1, cached_tokens=0, now=0.0)
    rule.first_token(2, cached_tokens=0, now=0.0)
    assert rule.costs(asked(3, chain(1, 12))) == {"a": 12 + 12}


def test_defaults_leave_a_cached_prefix_for_an_idle_replica_where_decodes_hold_many_blocks() -> None:
    """Cached 8 of 10 blocks beside 20 blocks of another's decode: 2 + 30 against 10 + 10. Tuned, it stays."""
    for rule, choice in ((Dynamo(seed=1), "b"), (Dynamo(seed=1, parameters=TUNED), "a")):
        joined(rule, "a", "b").on_frame("a", frame("a", stored=chain(1, 8)), 0.0)
        rule.put(asked(1, chain(2, 20)), "a", 0.0)
        rule.first_token(1, cached_tokens=0, now=0.0)
        assert rule.place(asked(2, chain(1, 10)), 1.0) == choice


def test_siblings_before_the_first_event_are_spread() -> None:
    rule = joined(Dynamo(seed=1), "a", "b", "c")
    assert len({rule.place(asked(number, chain(1, 10)), 0.0) for number in range(3)}) == 3


def test_equal_costs_are_settled_by_chance() -> None:
    chosen = {joined(Dynamo(seed=seed), "a", "b", "c").place(asked(1, chain(1, 9)), 0.0) for seed in range(30)}
    assert chosen == {"a", "b", "c"}


def test_requests_without_a_full_block_count_their_tokens() -> None:
    rule = joined(Dynamo(seed=1), "a", "b")
    loaded(rule, {"a": 1})
    rule.put(asked(1, (), tokens=8), "b", 0.0)
    assert rule.place(asked(2, (), tokens=8), 0.0) == "a"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_blocks_in_use_are_the_union_of_the_requests(steps: list[tuple[int, int, int]]) -> None:
    """Prompts are forks: a common head, then a branch of their own."""
    active = ActiveBlocks()
    requests: dict[int, list[int]] = {}
    for request, head, branch in steps:
        if request in requests:
            active.remove(request, requests.pop(request))
        else:
            requests[request] = chain(9, head) + ([1_000 * head + number for number in range(branch)] if head else [])
            active.add(request, requests[request])
        active.check_integrity()
        union = {block for hashes in requests.values() for block in hashes}
        assert len(active) == len(union)
        probe = chain(9, 9)
        assert active.with_prompt(probe) == len(union | set(probe))


def test_two_prompts_share_the_blocks_before_they_part() -> None:
    assert shared_blocks(chain(1, 9), chain(1, 4)) == 4
    assert shared_blocks(chain(1, 5) + chain(2, 5), chain(1, 5) + chain(3, 9)) == 5
    assert shared_blocks(chain(1, 5), chain(2, 5)) == 0
