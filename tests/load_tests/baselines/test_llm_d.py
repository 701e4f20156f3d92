"""`llm-d`: prefix 2 : KV cache 1 : queue 1."""

from __future__ import annotations

import pytest

from load_tests.baselines.llm_d import LlmD
from tests.load_tests.baselines.cases import asked, chain, frame, joined


def test_an_idle_replica_with_nothing_cached_scores_two() -> None:
    rule = joined(LlmD(seed=1), "a", "b")
    assert rule.scores(asked(1, chain(1, 10))) == {"a": 2.0, "b": 2.0}


def test_the_score_is_the_weighted_sum_of_the_three() -> None:
    """a: 2 · 5/10 + 250/1000 + 0; b: 0 + 1000/1000 + (4 − 1)/(4 − 0); c: 0 + 0.5 + 1."""
    rule = joined(LlmD(seed=1), *"abc")
    rule.on_frame("a", frame("a", stored=chain(1, 5), free=250, waiting=4), 0.0)
    rule.on_frame("b", frame("b", waiting=1), 0.0)
    rule.on_frame("c", frame("c", free=500, waiting=0), 0.0)
    assert rule.scores(asked(1, chain(1, 10))) == pytest.approx({"a": 1.25, "b": 1.75, "c": 1.5})
    assert rule.place(asked(1, chain(1, 10)), 0.0) == "b"


def test_what_was_sent_since_the_last_gauge_is_not_seen() -> None:
    rule = joined(LlmD(seed=1), "a", "b")
    rule.on_frame("a", frame("a", stored=chain(1, 5)), 0.0)
    assert {rule.place(asked(number, chain(1, 5)), 0.0) for number in range(20)} == {"a"}


def test_evicted_blocks_no_longer_count() -> None:
    rule = joined(LlmD(seed=1), "a", "b")
    rule.on_frame("a", frame("a", stored=chain(1, 5)), 0.0)
    rule.on_frame("a", frame("a", removed=chain(1, 5)), 1.0)
    rule.on_frame("b", frame("b", stored=chain(1, 1)), 1.0)
    assert rule.place(asked(1, chain(1, 5)), 1.0) == "b"


def test_a_prompt_shorter_than_a_block_goes_by_load() -> None:
    rule = joined(LlmD(seed=1), "a", "b")
    rule.on_frame("a", frame("a", free=900), 0.0)
    assert rule.place(asked(1, (), tokens=7), 0.0) == "b"


def test_equal_scores_are_settled_by_chance() -> None:
    chosen = {joined(LlmD(seed=seed), "a", "b", "c").place(asked(1), 0.0) for seed in range(30)}
    assert chosen == {"a", "b", "c"}
