"""The choice is the least predicted time; equal choices spread and repeat."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import InvalidRequest
from router.index import Depth
from router.policy import Candidate, LeastTime, Question, RoundRobin, Score, cacheable_tokens, policy_named

COUNTS = st.integers(0, 200)
DEPTHS = st.lists(COUNTS, min_size=3, max_size=3).map(lambda counts: Depth(*sorted(counts)))
CANDIDATES = st.lists(
    st.builds(
        Candidate, st.text(max_size=3), st.sampled_from([16, 32]), DEPTHS, COUNTS, st.integers(0, 10**6), COUNTS, COUNTS
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda candidate: candidate.replica,
)
QUESTIONS = st.builds(
    Question, st.integers(0, 10_000), st.integers(0, 2**64 - 1), st.integers(0, 99), st.floats(100, 10**7)
)


def candidate(
    name: str, *, gpu: int = 0, cpu: int = 0, disk: int = 0, backlog: int = 0, running: int = 0, room: int = 10_000
) -> Candidate:
    return Candidate(name, 16, Depth(gpu, gpu + cpu, gpu + cpu + disk), 0, backlog, running, room)


def best(*candidates: Candidate, prompt_tokens: int = 1_601, root: int = 7) -> Score:
    return LeastTime().rank(candidates, Question(prompt_tokens, root, 0, 10_000.0))[0]


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
