"""From a ledger to figures: each one against its definition, computed another way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.swarm.ledger import Entry, read_ledger, write_ledger
from load_tests.swarm.series import MAX_STEPS, seconds_of, step_s_for
from load_tests.swarm.settings import Settings
from load_tests.swarm.summarise import About, imbalance, replica_work, summarise
from load_tests.swarm.summary import Percentiles, Summary, read_summary, write_summary
from load_tests.swarm.tables import as_csv, side_by_side, words_of
from router.errors import InvalidRequest
from tests.load_tests.swarm.entries import CALM, entries, entry

if TYPE_CHECKING:
    from pathlib import Path

LEDGERS = st.lists(entries(), max_size=40)


def summary_of(ledger: list[Entry], **settings: Any) -> Summary:
    about = About(
        settings=Settings(**{"duration_s": 40.0, "warmup_s": 10.0} | settings),
        url="http://127.0.0.1:1",
        started_at="2026-01-01T00:00:00+00:00",
        ended_s=60.0,
        versions={},
        machine={},
    )
    return summarise(ledger, about)


@CALM
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_numpys_nearest_ranks(values: list[float]) -> None:
    found = Percentiles.of(values)
    assert found is not None
    wanted = np.percentile(values, [50, 90, 95, 99], method="inverted_cdf")
    assert [found.p50, found.p90, found.p95, found.p99] == pytest.approx(list(wanted), abs=1e-3)
    assert found.count == len(values)
    assert found.max == pytest.approx(max(values), abs=1e-3)
    assert found.mean == pytest.approx(float(np.mean(values)), abs=1e-3)


def test_no_values_have_no_percentiles() -> None:
    assert Percentiles.of([]) is None


@CALM
@given(LEDGERS)
def test_every_measured_request_is_in_one_outcome_and_warm_up_in_none(ledger: list[Entry]) -> None:
    for one in ledger:
        one.check_integrity()
    found = summary_of(ledger)
    measured = [one for one in ledger if one.is_measured]
    assert found.requests == sum(found.outcomes.values()) == len(measured)
    assert sum(found.errors.values()) == sum(found.outcomes[name] for name in ("refused", "failed", "timed_out"))


@CALM
@given(LEDGERS)
def test_hit_rates_are_shares_of_all_prompt_tokens(ledger: list[Entry]) -> None:
    found = summary_of(ledger)
    told = [one for one in ledger if one.is_measured and one.prompt_tokens is not None]
    if not told:
        assert (found.hit_rate, found.ideal_hit_rate, found.hit_of_ideal) == (None, None, None)
        return
    tokens = np.array([one.prompt_tokens for one in told], dtype=float)
    shares = np.array([one.seen_chars / one.prompt_chars for one in told])
    cached = sum(one.cached_tokens or 0 for one in told)
    assert found.hit_rate == pytest.approx(cached / tokens.sum(), abs=1e-4)
    assert found.ideal_hit_rate == pytest.approx((tokens * shares).sum() / tokens.sum(), abs=1e-4)


@CALM
@given(LEDGERS)
def test_the_series_holds_every_request_once_in_the_second_it_was_due_in(ledger: list[Entry]) -> None:
    series = seconds_of(ledger, step_s=1.0, warmup_s=10.0)
    assert sum(second.requests for second in series) == len(ledger)
    for second in series:
        due = [one for one in ledger if second.at_s <= one.due_s < second.at_s + 1]
        open_then = [one for one in ledger if one.due_s < second.at_s + 1 <= one.last_token_s]
        assert second.requests == len(due)
        assert second.in_flight == len(open_then)
        assert second.errors == sum(one.is_error for one in due)


@CALM
@given(LEDGERS)
def test_replicas_share_all_work_between_them_busiest_first(ledger: list[Entry]) -> None:
    found = replica_work(ledger)
    told = [one for one in ledger if one.replica is not None]
    assert sum(one.requests for one in found) == len(told)
    assert sum(one.work_tokens for one in found) == sum(
        (one.prompt_tokens or 0) - (one.cached_tokens or 0) + (one.output_tokens or 0) for one in told
    )
    assert [one.work_tokens for one in found] == sorted((one.work_tokens for one in found), reverse=True)


@CALM
@given(st.lists(st.integers(0, 1000), max_size=8), st.integers(1, 12))
def test_imbalance_is_the_largest_share_over_the_mean_of_all_replicas(work: list[int], replicas: int) -> None:
    found = imbalance(work, replicas=replicas)
    everybody = work + [0] * max(0, replicas - len(work))
    if not sum(work):
        assert found is None
    else:
        assert found == pytest.approx(max(everybody) / np.mean(everybody), abs=1e-4)


def test_a_replica_that_never_answered_counts_as_idle() -> None:
    """All of 192 requests on one of four: four times the mean."""
    assert imbalance([192], replicas=4) == 4.0
    assert imbalance([192], replicas=None) == 1.0


class TestGoodput:
    """What was promised, and kept."""

    def slo(self, *ledger: Entry) -> tuple[int, float | None]:
        found = summary_of(list(ledger), slo_ttft_ms=500.0, slo_itl_ms=100.0, warmup_s=0.0).slo
        return found.met, found.attainment

    def test_a_request_is_good_within_both_limits(self) -> None:
        late = entry(due_s=0.5)
        halting = entry(last_token_s=3.0)
        assert self.slo(entry(), late, halting) == (1, round(1 / 3, 4))

    def test_an_error_is_never_good_and_a_cut_by_the_client_is_not_asked(self) -> None:
        failed = entry(outcome="failed", error="truncated")
        cut = entry(outcome="cancelled")
        assert self.slo(entry(), failed, cut) == (1, 0.5)

    def test_waiting_to_be_sent_counts(self) -> None:
        """Due at 0, sent at 1: the second before is the endpoint's fault or the client's, but not left out."""
        assert self.slo(entry(due_s=0.0)) == (0, 0.0)


def test_itl_is_the_mean_gap_of_a_whole_answer() -> None:
    """0.8 s between the first and the last of 9 tokens."""
    assert entry().itl_ms == pytest.approx(100.0)
    assert entry(output_tokens=1).itl_ms is None
    assert entry(outcome="cancelled").itl_ms is None


def test_long_runs_have_a_bounded_series() -> None:
    assert step_s_for(59.0) == 1.0
    assert 1e6 / step_s_for(1e6) <= MAX_STEPS


@CALM
@given(LEDGERS)
def test_a_ledger_and_a_summary_read_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, ledger: list[Entry]
) -> None:
    folder = tmp_path_factory.mktemp("swarm")
    write_ledger(ledger, folder / "ledger.jsonl")
    assert list(read_ledger(folder / "ledger.jsonl")) == ledger
    found = summary_of(ledger)
    write_summary(found, folder / "deep" / "summary.json")
    assert read_summary(folder / "deep" / "summary.json") == found


def test_a_broken_line_of_a_ledger_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    write_ledger([entry()], path)
    path.write_bytes(path.read_bytes() + b'{"agent": 5}\n')
    with pytest.raises(InvalidRequest, match=r"ledger\.jsonl:2"):
        list(read_ledger(path))


@CALM
@given(LEDGERS)
def test_every_ledger_can_be_told_in_words_in_a_table_and_as_csv(ledger: list[Entry]) -> None:
    found = summary_of(ledger)
    assert words_of(found)[0].startswith(f"{found.requests:,} requests")
    assert side_by_side([found, found]).row_count > 10
    rows = dict(line.split(",")[:2] for line in as_csv(found).splitlines())
    assert rows["requests"] == str(found.requests)
    assert rows["outcome_cancelled"] == str(found.outcomes["cancelled"])
