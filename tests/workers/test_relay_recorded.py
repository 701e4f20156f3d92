"""The relay against streams recorded from real engines, older forms, and hostile input, each with its truth."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from router.wire import Cleared
from tests.workers.support import MODEL, TIER_OF_MEDIUM, View, feed, frames_of, recorded
from workers.relay import Relay


@pytest.mark.parametrize("stream", ["vllm_0_32", "vllm_0_32_bytes"])
def test_copies_equal_the_engines_own_pool_after_every_batch(stream: str) -> None:
    """Duplicates, salts, chunked prefill, an abort, evictions and a reset: the counts are the engine's own."""
    truths = recorded(f"{stream}_truth.jsonl")
    live = [line for line in recorded(f"{stream}.jsonl") if line["socket"] == "live"]
    relay, view = Relay(model=MODEL), View()
    for line, truth in zip(live, truths, strict=True):
        verdict = feed(relay, frames_of(line))
        assert verdict is not None
        assert (verdict.verdict, verdict.reasons) == ("applied", ())
        assert relay.resident().get("gpu", {}) == {int(key): copies for key, copies in truth["resident"].items()}
        view.apply(verdict.ops)
        assert view.equals(relay.snapshot())
        relay.check_integrity()
    assert relay.block_size == 32
    assert not relay.optimistic


def test_everything_resident_in_the_recording_is_shown() -> None:
    """An LRU pool frees tails first, so no chain of the recording is ever broken."""
    relay = Relay(model=MODEL, block_size=32)
    for line in recorded("vllm_0_32.jsonl"):
        if line["socket"] == "live":
            feed(relay, frames_of(line))
            assert sum(len(run.hashes) for run in relay.snapshot()) == len(relay.resident().get("gpu", {}))


def _variants() -> list[Any]:
    lines = [line for line in recorded("array_form.jsonl") if line["socket"] == "live"]
    return [pytest.param(list(group), id=name) for name, group in groupby(lines, key=lambda line: line["variant"])]


@pytest.mark.parametrize("lines", _variants())
def test_every_older_form_means_the_same(lines: list[dict[str, Any]]) -> None:
    """Copies per medium and attention group, for arrays, maps, signed integers, digests and other tiers."""
    relay, view = Relay(model=MODEL), View()
    for line in lines:
        verdict = feed(relay, frames_of(line))
        assert verdict is not None
        assert verdict.verdict == "applied", verdict
        truth = {
            (TIER_OF_MEDIUM[medium], int(group)): {int(key): copies for key, copies in held.items()}
            for medium, groups in line["resident"].items()
            for group, held in groups.items()
            if held
        }
        ranks = ("gpu", "cpu", "disk")
        assert {(ranks[rank], group): held for (rank, group), held in relay.pools().items()} == truth
        view.apply(verdict.ops)
        assert view.equals(relay.snapshot())
        relay.check_integrity()


def _cases() -> tuple[list[bytes], list[bytes], list[Any]]:
    lines = {line["id"]: line for line in recorded("hostile.jsonl")}
    setup, follow_up = frames_of(lines.pop("setup")), frames_of(lines.pop("follow_up"))
    return setup, follow_up, [pytest.param(line, id=name) for name, line in lines.items()]


SETUP, FOLLOW_UP, CASES = _cases()


@pytest.mark.parametrize("case", CASES)
def test_hostile_input_gets_its_verdict_and_the_relay_lives(case: dict[str, Any]) -> None:
    """Never an exception, never a block that must not be there, and the next good batch still counts."""
    relay = Relay(model=MODEL)
    feed(relay, SETUP)
    verdict = feed(relay, frames_of(case))
    got = verdict.verdict if verdict else "rejected"
    assert got in {"accept": ("applied", "partly"), "reject": ("rejected",)}.get(case["verdict"], (got,))
    held = relay.resident().get("gpu", {})
    if case["resident"] is not None:
        assert held == {int(key): copies for key, copies in case["resident"].items()}
    assert not held.keys() & {int(key) for key in case["must_not"]}
    relay.check_integrity()
    assert feed(relay, FOLLOW_UP) is not None
    assert 9603171679039526038 in relay.resident()["gpu"]


def test_a_lost_batch_forgets_everything_before_it() -> None:
    """What the lost batch removed is unknown, so nothing older may be shown."""
    live = [line for line in recorded("vllm_0_32.jsonl") if line["socket"] == "live"]
    relay = Relay(model=MODEL)
    feed(relay, frames_of(live[0]))
    verdict = feed(relay, frames_of(live[2]))
    assert verdict is not None
    assert verdict.ops[0] == Cleared()
    assert relay.counters["gaps"] == 1
    assert len(relay.resident()["gpu"]) == 3
