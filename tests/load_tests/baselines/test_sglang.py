"""`sglang`: the longest match by memory, a threshold, a gate, and no events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.baselines import sglang
from load_tests.baselines.prompt_tree import PromptTree
from load_tests.baselines.sglang import EVICT_EVERY_S, Sglang
from router.errors import KvistBug
from tests.load_tests.baselines.cases import asked, chain, frame, joined, loaded


def test_a_prompt_follows_its_longest_match() -> None:
    rule = joined(Sglang(seed=1), *"abc")
    rule.put(asked(1, chain(1, 4)), "b", 0.0)
    rule.put(asked(2, chain(1, 6)), "c", 0.0)
    assert rule.place(asked(3, chain(1, 10)), 0.0) == "c"


def test_a_match_of_less_than_the_threshold_goes_to_the_least_loaded() -> None:
    """3 of 10 blocks are not more than 0.3; 4 of 10 are."""
    rule = joined(Sglang(seed=1), *"ab")
    rule.put(asked(1, chain(1, 3)), "a", 0.0)
    rule.put(asked(2, chain(2, 4)), "a", 0.0)
    assert rule.place(asked(3, chain(1, 10)), 0.0) == "b"
    rule.finish(3, 0.0)
    assert rule.place(asked(4, chain(2, 10)), 0.0) == "a"


def test_of_several_holders_the_least_loaded_takes_it() -> None:
    rule = joined(Sglang(seed=1), *"abc")
    for number, name in enumerate("aab"):
        rule.put(asked(number, chain(1, 5)), name, 0.0)
    assert rule.place(asked(9, chain(1, 5)), 0.0) == "b"


def test_without_a_match_the_fewest_requests_then_the_fewest_ever_then_the_first() -> None:
    rule = joined(Sglang(seed=1), *"abc")
    assert [rule.place(asked(number, chain(number, 2)), 0.0) for number in range(1, 4)] == ["a", "b", "c"]
    rule.finish(1, 0.0)
    rule.finish(2, 0.0)
    rule.put(asked(4, chain(4, 2)), "a", 0.0)
    rule.finish(4, 0.0)
    assert rule.place(asked(5, chain(5, 2)), 0.0) == "b"


def test_evictions_and_other_events_are_never_seen() -> None:
    rule = joined(Sglang(seed=1), *"ab")
    rule.put(asked(1, chain(1, 5)), "b", 0.0)
    loaded(rule, {"b": 2})
    rule.on_frame("b", frame("b", removed=chain(1, 5)), 0.0)
    rule.on_frame("a", frame("a", stored=chain(1, 5)), 0.0)
    assert rule.place(asked(2, chain(1, 5)), 0.0) == "b"


def test_a_hot_replica_of_four_does_not_spill_before_its_86th_request() -> None:
    """2σ is above its lead, so the margin of 64 decides: 85 is not above 85 / 4 + 64, 86 is above 86 / 4 + 64."""
    rule = joined(Sglang(seed=1), *"abcd")
    rule.put(asked(1, chain(1, 5)), "b", 0.0)
    loaded(rule, {"b": 84})
    assert not rule.is_overloaded("b")
    assert rule.place(asked(2, chain(1, 5)), 0.0) == "b"
    assert rule.is_overloaded("b")
    assert rule.place(asked(3, chain(1, 5)), 0.0) == "a"


def test_a_hot_replica_of_eight_spills_early_and_the_prefix_is_then_held_twice() -> None:
    """One of eight has 5 and the others none: mean 5/8, margin max(4, 2σ = 3.3) = 4, and 5 > 4 5/8."""
    rule = joined(Sglang(seed=1), *"abcdefgh")
    for number in range(4):
        rule.put(asked(number, chain(1, 5)), "h", 0.0)
    assert rule.place(asked(10, chain(1, 5)), 0.0) == "h"
    assert rule.place(asked(11, chain(1, 5)), 0.0) == "a"
    assert rule.place(asked(12, chain(1, 5)), 0.0) == "a"


def test_load_above_the_margin_alone_does_not_spill() -> None:
    """120 against seven times 100: above mean + 2σ = 102.5 + 13.2, and not above 1.5 times the mean."""
    rule = joined(Sglang(seed=1), *"abcdefgh")
    loaded(rule, {"a": 120} | dict.fromkeys("bcdefgh", 100))
    assert not rule.is_overloaded("a")


def test_memory_above_the_bound_forgets_what_was_sent_least_recently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "TREE_CHARACTERS", 10 * 16 * sglang.CHARACTERS_PER_TOKEN)
    rule = joined(Sglang(seed=1), *"ab")
    rule.put(asked(1, chain(1, 8)), "b", 0.0)
    rule.put(asked(2, chain(2, 8)), "b", 1.0)
    rule.put(asked(3, chain(1, 4)), "b", 2.0)
    assert rule._trees["b"].matched(chain(1, 8)) == 8
    rule.put(asked(4), "b", EVICT_EVERY_S)
    assert rule._trees["b"].matched(chain(2, 8)) == 6
    assert rule._trees["b"].matched(chain(1, 8)) == 4


def test_a_block_without_its_parent_is_a_bug() -> None:
    tree = PromptTree(10)
    tree.insert(chain(1, 8)[4:], 0.0)
    with pytest.raises(KvistBug):
        tree.check_integrity([chain(1, 8)])


PROMPTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.booleans()), max_size=30)


@given(prompts=PROMPTS, bound=st.integers(1, 20))
def test_the_tree_agrees_with_a_list_of_prompts(prompts: list[tuple[int, int, bool]], bound: int) -> None:
    """Until something is forgotten, the match is the longest common prefix; after that, never a hole or too many."""
    tree, longest = PromptTree(bound), dict.fromkeys(range(4), 0)
    for now, (name, blocks, evicts) in enumerate(prompts):
        tree.insert(chain(name, blocks), float(now))
        longest[name] = max(longest[name], blocks)
        assert blocks <= tree.matched(chain(name, 12)) <= longest[name]
        if evicts:
            tree.evict()
            assert len(tree) <= bound
        tree.check_integrity([chain(one, 12) for one in longest])
