"""A request over which replicas die goes to no third one."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import KvistBug
from router.limits import MAX_SUSPECT_REQUESTS, QUARANTINE_DEATHS, QUARANTINE_S
from router.quarantine import Quarantine, _Suspicion

POISON, OTHER = 1, 2


def test_quarantine_deaths_stop_a_request_that_kills_and_quarantine_s_stops_it_from_being_refused_for_ever() -> None:
    """Another request is not held responsible."""
    quarantine = Quarantine()
    for number in range(QUARANTINE_DEATHS):
        assert not quarantine.bars(POISON, 1.0)
        quarantine.note(POISON, f"r{number}", 1.0)
    assert quarantine.bars(POISON, 1.0 + QUARANTINE_S - 0.01)
    assert not quarantine.bars(OTHER, 1.0)
    assert not quarantine.bars(POISON, 1.0 + QUARANTINE_S)
    assert len(quarantine) == 0


def test_one_replica_that_dies_with_many_choices_of_a_request_counts_once() -> None:
    quarantine = Quarantine()
    for _ in range(5):
        quarantine.note(POISON, "r", 1.0)
    assert not quarantine.bars(POISON, 1.0)


def test_deaths_far_apart_are_chance() -> None:
    quarantine = Quarantine()
    quarantine.note(POISON, "r1", 0.0)
    quarantine.note(POISON, "r2", QUARANTINE_S)
    assert not quarantine.bars(POISON, QUARANTINE_S)


def test_max_suspect_requests_stops_deaths_of_busy_replicas_from_filling_memory() -> None:
    """The oldest are forgotten first."""
    quarantine = Quarantine()
    for fingerprint in range(MAX_SUSPECT_REQUESTS + 10):
        quarantine.note(fingerprint, "r1", 1.0)
    quarantine.note(5, "r2", 1.0)
    quarantine.note(MAX_SUSPECT_REQUESTS, "r2", 1.0)
    assert len(quarantine) == MAX_SUSPECT_REQUESTS
    assert not quarantine.bars(5, 1.0)
    assert quarantine.bars(MAX_SUSPECT_REQUESTS, 1.0)
    assert repr(quarantine) == f"<Quarantine suspects={MAX_SUSPECT_REQUESTS}>"


deaths = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.floats(0.0, 40.0)), max_size=40)


@given(deaths)
def test_it_bars_whom_two_replicas_died_over_within_the_time(history: list[tuple[int, str, float]]) -> None:
    """Against a model that remembers every death: barred while one of the last two replicas' deaths is younger than
    QUARANTINE_S, and both were so close."""
    quarantine, now = Quarantine(), 0.0
    known: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for fingerprint, replica, pause_s in history:
        now += pause_s
        quarantine.note(fingerprint, replica, now)
        fresh = [(name, at) for name, at in known[fingerprint] if at > now - QUARANTINE_S and name != replica]
        known[fingerprint] = [*fresh, (replica, now)][-QUARANTINE_DEATHS:]
        quarantine.check_integrity()
        for other, entries in known.items():
            barred = len(entries) >= QUARANTINE_DEATHS and entries[-1][1] > now - QUARANTINE_S
            assert quarantine.bars(other, now) == barred


def test_more_than_may_be_kept_is_noticed() -> None:
    quarantine = Quarantine()
    quarantine._suspicions[1] = _Suspicion({})
    with pytest.raises(KvistBug, match="without deaths"):
        quarantine.check_integrity()
    quarantine._suspicions.update({number: _Suspicion({"r": 1.0}) for number in range(MAX_SUSPECT_REQUESTS + 1)})
    with pytest.raises(KvistBug, match="too many"):
        quarantine.check_integrity()
