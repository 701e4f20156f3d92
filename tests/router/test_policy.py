"""The choice is the least predicted time; equal choices spread and repeat."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.cost import Standing, delay_s2
from router.errors import InvalidRequest
from router.index import Depth
from router.policy import Candidate, LeastTime, Question, RoundRobin, Score, cacheable_tokens, policy_named
from router.step_rule import FIRST_COME, StepRule

COUNTS = st.integers(0, 200)
DEPTHS = st.lists(COUNTS, min_size=3, max_size=3).map(lambda counts: Depth(*sorted(counts)))
RULES = st.sampled_from([StepRule(), StepRule(2_048, 0), StepRule(2_048, 1_024), StepRule(512, 100)])


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    """Any state that a fleet can tell of."""
    rule = draw(RULES)
    ahead = draw(st.lists(st.integers(1, 50_000), max_size=4))
    return Standing(
        rule,
        rule.part_tokens,
        sum(ahead),
        ahead,
        slowness=draw(st.sampled_from([1.0, 2.5, 0.5])),
        arrivals_per_s=draw(st.floats(0, 5)),
        overdue_s=draw(st.sampled_from([0.0, 3.0])),
        live_room_tokens=draw(st.integers(-10_000, 100_000)),
    )


STANDINGS = standings()
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        st.text(max_size=3),
        st.sampled_from([16, 32]),
        DEPTHS,
        COUNTS,
        COUNTS,
        COUNTS,
        st.integers(0, 500),
        STANDINGS,
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda candidate: candidate.replica,
)
QUESTIONS = st.builds(
    Question, st.integers(0, 10_000), st.integers(0, 2**64 - 1), st.integers(0, 99), st.floats(100, 10**7),
    st.floats(0, 0.02), st.floats(0, 1), st.floats(1, 10**5),
)  # fmt: skip


def candidate(
    name: str, *, gpu: int = 0, cpu: int = 0, disk: int = 0, backlog: int = 0, running: int = 0, room: int = 10_000
) -> Candidate:
    standing = Standing(FIRST_COME, backlog_tokens=backlog, ahead=(backlog,))
    return Candidate(name, 16, Depth(gpu, gpu + cpu, gpu + cpu + disk), 0, running, room, 0, standing)


def standing(one: Candidate, **changes: Any) -> Candidate:
    return one._replace(standing=one.standing._replace(**changes))


def best(*candidates: Candidate, prompt_tokens: int = 1_601, root: int = 7) -> Score:
    return LeastTime().rank(candidates, Question(prompt_tokens, root, 0, 10_000.0, 0.002))[0]


@given(CANDIDATES, QUESTIONS, st.sampled_from(["kvist", "round-robin"]))
@settings(deadline=None)
def test_every_candidate_is_ranked_once_whatever_their_order(
    candidates: list[Candidate], question: Question, name: str
) -> None:
    """Rankings depend on what is given, not on the order it is given in."""
    ranked = policy_named(name).rank(candidates, question)
    assert sorted(score.replica for score in ranked) == sorted(one.replica for one in candidates)
    assert policy_named(name).rank(candidates[::-1], question) == ranked
    for score in ranked:
        assert 0 <= score.cached_tokens <= max(question.prompt_tokens - 1, 0)
        assert score.cost_s >= 0


@given(st.integers(0, 5_000), st.integers(1, 64))
@settings(deadline=None)
def test_the_last_token_is_never_taken_from_the_cache(prompt_tokens: int, block_size: int) -> None:
    """An engine computes at least one token, and caches whole blocks."""
    most = cacheable_tokens(prompt_tokens, block_size)
    assert most % block_size == 0
    assert most < max(prompt_tokens, 1)
    assert most + block_size >= prompt_tokens


def test_a_fully_held_prompt_predicts_the_last_token_floor() -> None:
    """A prompt of whole blocks loses its last block, as it does in the engine."""
    assert best(candidate("a", gpu=10), prompt_tokens=160).cached_tokens == 144
    assert best(candidate("a", gpu=10), prompt_tokens=161).cached_tokens == 160


def test_the_warm_replica_wins_until_its_queue_costs_more_than_computing_again() -> None:
    """Hot prefixes spill before a queue builds."""
    assert best(candidate("warm", gpu=100, backlog=1_000), candidate("cold")).replica == "warm"
    assert best(candidate("warm", gpu=100, backlog=2_100), candidate("cold")).replica == "cold"


def test_running_decodes_cost_a_little() -> None:
    """Between equally warm replicas the less busy one wins."""
    assert best(candidate("a", gpu=50, running=5), candidate("b", gpu=50)).replica == "b"
    assert best(candidate("a", gpu=100, running=5), candidate("b", gpu=50)).replica == "a"


def test_slower_tiers_earn_less_credit_but_count_as_cached() -> None:
    """The engine counts a block from host memory as cached; it is still worth less than one on the GPU."""
    ranked = LeastTime().rank(
        [candidate("disk", disk=90), candidate("gpu", gpu=90), candidate("none"), candidate("cpu", cpu=90)],
        Question(1_601, 7, 0, 10_000.0),
    )
    assert [score.replica for score in ranked] == ["gpu", "cpu", "disk", "none"]
    assert [score.cached_tokens for score in ranked] == [1_440, 1_440, 1_440, 0]


def test_blocks_that_requests_in_flight_will_add_count_like_held_ones() -> None:
    """Siblings meet on the replica where the first of them went."""
    coming = candidate("a")._replace(coming_blocks=40)
    assert best(coming, candidate("b")).cached_tokens == 640


def test_equal_scores_spread_by_prefix_and_repeat() -> None:
    """Cold prompts do not pile up on one replica; the same one comes back to the same."""
    idle = [candidate(name) for name in "abcd"]
    winners = [best(*idle, root=root).replica for root in range(400)]
    assert winners == [best(*idle, root=root).replica for root in range(400)]
    assert all(60 < winners.count(name) < 140 for name in "abcd")


def test_a_replica_that_leaves_moves_only_its_own_prefixes() -> None:
    """Rendezvous hashing: the rest stay where they are."""
    idle = [candidate(name) for name in "abcd"]
    for root in range(100):
        before = best(*idle, root=root).replica
        if before != "d":
            assert best(*idle[:3], root=root).replica == before


def test_differences_below_the_tie_do_not_decide() -> None:
    """One token more is no reason to leave the prefix's own replica."""
    for root in range(50):
        assert best(candidate("a"), candidate("b"), root=root).replica == (
            best(candidate("a", backlog=1), candidate("b", backlog=1), root=root).replica
        )
    winners = {best(candidate("a", backlog=1), candidate("b"), root=root).replica for root in range(50)}
    assert winners == {"a", "b"}


def test_round_robin_takes_each_in_turn() -> None:
    """Whatever they hold."""
    held = [candidate("b", gpu=90), candidate("a"), candidate("c")]
    winners = [RoundRobin().rank(held, Question(1_600, 7, turn, 1e4))[0].replica for turn in range(6)]
    assert winners == ["a", "b", "c", "a", "b", "c"]
    assert RoundRobin().rank([], Question(1, 0, 3, 1e4)) == ()


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    """A typing error in a config is found at its start."""
    with pytest.raises(InvalidRequest, match="kvist, round-robin"):
        policy_named("robin-round")


@given(st.integers(0, 2**64 - 1))
@settings(deadline=None)
def test_among_equals_a_new_conversation_goes_where_more_of_its_kind_still_fit(root: int) -> None:
    """Whatever its root; full pools are alike, and a cached prefix outweighs any room."""
    assert best(candidate("fuller", room=250), candidate("free", room=300), root=root).replica == "free"
    assert best(candidate("full", room=0, gpu=90), candidate("free"), root=root).replica == "full"
    full = [candidate("a", room=0), candidate("b", room=99)]
    assert best(*full, root=root).replica == best(*[one._replace(room_blocks=5) for one in full], root=root).replica


def test_what_an_engine_will_probably_not_find_does_not_count() -> None:
    """A hundred blocks less fifty are as good as fifty; predictions stay whole blocks, and are never below none."""
    less = candidate("a", gpu=100)._replace(overstated_tokens=800)
    assert best(less).cached_tokens == 800
    assert best(less).cost_s == best(candidate("a", gpu=50)).cost_s
    assert best(less, candidate("b", gpu=60)).replica == "b"
    assert best(less._replace(overstated_tokens=10_000)).cached_tokens == 0
    assert less.shown_tokens(1_600) == 1_584


@given(CANDIDATES, QUESTIONS, st.integers(1, 30))
@settings(deadline=None)
def test_more_in_the_cache_is_never_worse(candidates: list[Candidate], question: Question, more: int) -> None:
    """Nor does it matter to the others."""
    first = candidates[0]
    deeper = first._replace(depth=Depth(*[blocks + more for blocks in first.depth]))
    before = {score.replica: score for score in LeastTime().rank(candidates, question)}
    after = {score.replica: score for score in LeastTime().rank([deeper, *candidates[1:]], question)}
    assert after[first.replica].compute_s <= before[first.replica].compute_s
    assert after[first.replica].cost_s <= before[first.replica].cost_s + 1e-9
    assert all(after[one.replica] == before[one.replica] for one in candidates[1:])


@given(CANDIDATES, QUESTIONS, st.integers(1, 50_000))
@settings(deadline=None)
def test_more_backlog_is_never_better(candidates: list[Candidate], question: Question, tokens: int) -> None:
    """Whoever brought it."""
    first = candidates[0]
    ahead = [*first.standing.ahead, tokens]
    busier = standing(first, ahead=ahead, backlog_tokens=sum(ahead))
    before = {score.replica: score.cost_s for score in LeastTime().rank([first], question)}
    after = {score.replica: score.cost_s for score in LeastTime().rank([busier], question)}
    assert after[first.replica] >= before[first.replica] - 1e-9


@given(CANDIDATES, QUESTIONS, st.sampled_from([0.25, 4.0]))
@settings(deadline=None)
def test_a_deployment_that_is_faster_in_everything_chooses_alike(
    candidates: list[Candidate], question: Question, faster: float
) -> None:
    """Times are scale-free: only the tie has a length of its own."""
    quick = [
        standing(one, arrivals_per_s=one.standing.arrivals_per_s * faster, overdue_s=one.standing.overdue_s / faster)
        for one in candidates
    ]
    sooner = question._replace(tokens_per_s=question.tokens_per_s * faster, decode_s=question.decode_s / faster)
    costs = {score.replica: score.cost_s for score in LeastTime().rank(candidates, question)}
    for score in LeastTime().rank(quick, sooner):
        assert score.cost_s * faster == pytest.approx(costs[score.replica])


@given(CANDIDATES, QUESTIONS)
@settings(deadline=None)
def test_the_parts_of_a_cost_add_up_to_it(candidates: list[Candidate], question: Question) -> None:
    """What `kvist explain` says is what was compared."""
    for score in LeastTime().rank(candidates, question):
        assert sum(score[5:]) == pytest.approx(score.cost_s)
        assert min(score[3:]) >= 0


def test_a_slow_replica_is_left_to_those_whose_blocks_it_holds() -> None:
    """A token there takes four times as long: a cold prompt goes elsewhere, a warm turn stays."""
    slow = standing(candidate("slow"), slowness=4.0)
    assert best(slow, candidate("b")).replica == "b"
    assert best(slow._replace(depth=Depth(90, 90, 90)), candidate("b")).replica == "slow"


def test_a_busy_neighbourhood_costs_a_cold_prompt_more_than_a_quiet_one() -> None:
    """The delay that it causes to those who follow is part of its cost; a warm turn causes none."""
    busy = standing(candidate("busy"), arrivals_per_s=3.0)
    assert best(busy, candidate("quiet", backlog=100)).replica == "quiet"
    assert best(busy._replace(depth=Depth(100, 100, 100)), candidate("quiet")).replica == "busy"


def test_a_stuck_replica_is_avoided_while_its_oldest_prompt_is_late() -> None:
    late = standing(candidate("late", gpu=50), overdue_s=2.0)
    assert best(late, candidate("b")).replica == "b"


def test_blocks_of_live_sessions_are_not_driven_out_while_another_pool_has_dead_ones() -> None:
    """Both pools are full; one of live sessions, one of others."""
    full = standing(candidate("live", room=0), live_room_tokens=0)
    assert best(full, candidate("dead", room=0)).replica == "dead"
    assert best(full._replace(depth=Depth(90, 90, 90)), candidate("dead", room=0)).replica == "live"


def test_a_warm_turn_goes_home_to_a_shared_step_and_away_from_a_queue() -> None:
    """Behind a cold prompt of 100,000 tokens: one share of a step is little, all of it is more than computing anew."""
    behind = standing(candidate("home", gpu=90), backlog_tokens=100_000, ahead=[100_000])
    rule = StepRule(8_192, 4_096)
    assert best(behind, candidate("away"), prompt_tokens=16_001).replica == "away"
    shared = standing(behind, rule=rule, part_tokens=rule.part_tokens)._replace(depth=Depth(980, 980, 980))
    assert best(shared, candidate("away"), prompt_tokens=16_001).replica == "home"


@given(st.floats(0, 50), st.floats(0, 50), st.floats(0, 10), st.floats(0, 1))
@settings(deadline=None)
def test_sharing_steps_lowers_what_a_prompt_does_to_others(
    wait_s: float, compute_s: float, slice_s: float, short_share: float
) -> None:
    """Never below nothing; with slices as long as the prompt it is P (W + P/2)."""
    delay = delay_s2(wait_s, compute_s, slice_s, short_share)
    assert -1e-9 <= delay <= delay_s2(wait_s, compute_s, slice_s, 0.0) + 1e-6
    whole = compute_s * (wait_s + compute_s / 2)
    assert delay_s2(wait_s, compute_s, compute_s, short_share) == pytest.approx(whole)
