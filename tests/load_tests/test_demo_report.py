"""The demo's numbers, its order of turns, and what it writes."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from load_tests.client import Sample
from load_tests.demo_arms import ARMS, ArmsResult
from load_tests.demo_report import as_data, table, write
from load_tests.demo_routing import CONVERSATIONS, TURNS, RoutingSummary, pool_blocks, turn_order
from load_tests.prose import attribution_header, sentences
from load_tests.stats import percentile

if TYPE_CHECKING:
    from pathlib import Path


def result() -> ArmsResult:
    """Three arms whose p50s are 10, 50 and 11 ms."""
    samples = {
        arm: [Sample(ttft_ms=middle + step, prompt_tokens=9, cached_tokens=8, text="x") for step in (-1.0, 0.0, 90.0)]
        for arm, middle in zip(ARMS, (10.0, 50.0, 11.0), strict=True)
    }
    return ArmsResult(prompt_tokens=9, samples=samples, counted_with_header=9, counted_without_header=9)


ROUTING = {
    "round_robin": RoutingSummary(hit_rate=0.25, ttft_ms_p50=3.0, ttft_ms_p99=9.0),
    "kvist": RoutingSummary(hit_rate=0.75, ttft_ms_p50=1.0, ttft_ms_p99=8.0),
}


def test_percentiles_are_measured_values_by_nearest_rank() -> None:
    """The 50th of two is the lower one, the 99th of fifteen the highest."""
    assert percentile([2.0, 1.0], 50) == 1.0
    assert percentile(list(range(1, 16)), 99) == 15
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_the_json_has_the_promised_keys_and_ratios_of_p50s() -> None:
    """`stable` is the yardstick."""
    data = as_data(result(), ROUTING)
    assert set(data) == {
        "prompt_tokens", "arms", "ratio_varying", "ratio_stripped", "routing", "versions", "machine"
    }  # fmt: skip
    assert data["arms"]["varying"] == {"n": 3, "ttft_ms_p50": 50.0, "ttft_ms_p99": 140.0, "cached_tokens_p50": 8}
    assert (data["ratio_varying"], data["ratio_stripped"]) == (5.0, 1.1)
    assert data["routing"]["kvist"] == {"hit_rate": 0.75, "ttft_ms_p50": 1.0, "ttft_ms_p99": 8.0}


def test_the_report_is_written_as_json_and_as_one_picture(tmp_path: Path) -> None:
    """The folder is made; the table names every arm and router."""
    data = as_data(result(), ROUTING)
    write(data, result(), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "demo.json").read_text()) == data
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert all(name in table(data) for name in (*ARMS, *ROUTING))


def test_every_conversation_speaks_once_a_round_in_the_same_order_on_every_run() -> None:
    """Shuffled, but seeded."""
    order = turn_order()
    assert order == turn_order()
    assert Counter(order) == dict.fromkeys(range(CONVERSATIONS), TURNS)
    rounds = [order[start : start + CONVERSATIONS] for start in range(0, len(order), CONVERSATIONS)]
    assert all(sorted(one) == list(range(CONVERSATIONS)) for one in rounds)
    assert len({tuple(one) for one in rounds}) == TURNS


def test_the_two_pools_together_hold_all_conversations_and_one_alone_does_not() -> None:
    """Else a miss would not be the router's."""
    blocks_of_one = pool_blocks(32) // 5
    assert 2 * pool_blocks(32) >= CONVERSATIONS * blocks_of_one > pool_blocks(32)


def test_prompts_are_the_same_on_every_machine_and_headers_differ_in_their_fields_only() -> None:
    """Seeded text, seeded hex."""
    assert sentences(3, 2) == sentences(3, 2) != sentences(4, 2)
    first, second = attribution_header(1), attribution_header(2)
    assert first != second
    assert len(first) == len(second)
    assert first.startswith("x-anthropic-billing-header: cc_version=2.1.114.")
