"""What replicas say of themselves is checked; what operators are told is in words."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from router.errors import WireError
from router.feed import Feed
from router.limits import ACCURACY_WINDOW_S, OVERSTATEMENT_SAMPLES
from router.replicas import Accuracy, Overstatement, ReplicaInfo, problems_of

INFO: dict[str, Any] = {
    "replica": "r",
    "incarnation": "i",
    "model": "m",
    "block_size": 16,
    "pool_blocks": 100,
    "max_model_len": 4096,
    "events": "tcp://127.0.0.1:1",
    "snapshots": "ipc:///tmp/s",
    "optimistic": True,
    "step_tokens": 8192,
    "share_tokens": 4096,
    "data": {"host": "127.0.0.1", "port": 2, "secret": "0a" * 32},
    "data_fault": "",
}


def test_metadata_survives_the_round_trip() -> None:
    """Plain data on the way, checked on arrival."""
    info = ReplicaInfo.from_metadata(INFO)
    assert info.to_metadata() == INFO
    assert ReplicaInfo.from_metadata(info.to_metadata()) == info


def test_a_replica_that_says_nothing_of_it_is_not_optimistic() -> None:
    metadata = {name: value for name, value in INFO.items() if name != "optimistic"}
    assert not ReplicaInfo.from_metadata(metadata).optimistic


def test_a_replica_that_does_not_tell_its_step_rule_is_taken_as_first_come_first_served() -> None:
    """Engines of earlier releases know no such fields."""
    info = ReplicaInfo.from_metadata({name: INFO[name] for name in INFO if name not in {"step_tokens", "share_tokens"}})
    assert (info.step_tokens, info.share_tokens) == (0, 0)


def test_what_a_replica_overstates_is_the_usual_case_and_is_learnt_anew() -> None:
    """A miss of a whole prompt now and then does not count; what was not shown teaches nothing.
    OVERSTATEMENT_SAMPLES stops the distant past from ruling: an engine that finds all is believed again after half."""
    overstatement = Overstatement()
    assert overstatement.tokens == 0
    overstatement.note(shown=0, found=500)
    assert overstatement.tokens == 0
    for turn in range(30):
        overstatement.note(shown=10_000, found=0 if turn % 4 == 0 else 9_936)
    assert overstatement.tokens == 64
    for _ in range(OVERSTATEMENT_SAMPLES // 2 + 1):
        overstatement.note(shown=1_000, found=2_000)
    assert overstatement.tokens == 0


@pytest.mark.parametrize(
    "change",
    [
        {"replica": ""}, {"incarnation": "x" * 257}, {"block_size": 0}, {"block_size": "16"}, {"block_size": 2**20},
        {"pool_blocks": 0}, {"pool_blocks": 2**60}, {"max_model_len": None}, {"events": "http://x"}, {"color": "red"},
        {"data": {"host": "h", "port": 1}}, {"data": {"host": "h", "port": 0, "secret": "0a" * 32}},
        {"data": {"host": "h", "port": 1, "secret": "short"}}, {"data": "tcp://h:1"},
    ],
    ids=str,
)  # fmt: skip
def test_metadata_with_one_wrong_field_is_refused(change: dict[str, Any]) -> None:
    """The fault is named."""
    with pytest.raises(WireError, match="replica metadata"):
        ReplicaInfo.from_metadata(INFO | change)


def test_metadata_with_a_missing_field_is_refused() -> None:
    """Only being optimistic, the step rule and the data plane have defaults."""
    for name in INFO.keys() - {"optimistic", "step_tokens", "share_tokens", "data", "data_fault"}:
        with pytest.raises(WireError, match=name):
            ReplicaInfo.from_metadata({other: value for other, value in INFO.items() if other != name})


def test_a_secret_is_not_in_what_is_printed() -> None:
    """Logs show where a data plane is, and no more of it."""
    assert "0a0a" not in repr(ReplicaInfo.from_metadata(INFO))


def test_accuracy_remembers_the_last_minutes_only() -> None:
    """Sums of the current and the previous window."""
    accuracy = Accuracy()
    accuracy.note(predicted=100, actual=90, now=1.0)
    accuracy.note(predicted=10, actual=10, now=ACCURACY_WINDOW_S + 1)
    assert accuracy.totals(ACCURACY_WINDOW_S + 2) == (110, 100)
    assert accuracy.totals(2 * ACCURACY_WINDOW_S + 2) == (10, 10)
    assert accuracy.totals(9 * ACCURACY_WINDOW_S) == (0, 0)


def test_problems_are_said_in_words_and_a_healthy_replica_has_none() -> None:
    """One sentence each."""
    feed = Feed(incarnation="i", block_size=16, max_blocks=9, now=0.0)
    assert problems_of(feed, bad_messages=0, skipped_events=0, predicted=0, actual=0) == (
        "its first snapshot has not come yet: no locality credit",
    )
    assert problems_of(feed, bad_messages=0, skipped_events=0, predicted=0, actual=0, data_fault="too new a Serve")[
        1:
    ] == ("no data plane, Serve's handle is used: too new a Serve",)
    feed.tick(9.0)
    feed.counters = Counter({"snapshot_overflows": 1})
    assert problems_of(feed, bad_messages=3, skipped_events=2, predicted=90_000, actual=20_000) == (
        "it has fallen silent: not routable",
        "3 of its messages were malformed",
        "2 of its engine's events could not be used",
        "it claims more blocks than its pool can hold",
        "cached tokens predicted 90000, counted by the engine 20000",
    )
