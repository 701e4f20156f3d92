"""New sessions wait while live ones fill the caches, in order, bounded, and only where holding helps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import admission as admission_module
from router.admission import BUSY_SHARE, LIVE_SHARE, RETURN_SHARE, Admission, Pressure
from router.limits import HELD_FORGOTTEN_S, HOLD_ASK_S, MAX_HOLD_S

THRASH = Pressure(live_tokens=900, pool_tokens=1_000, busy_share=0.5, return_share=0.9)
CALM = THRASH._replace(live_tokens=100)


def asked(admission: Admission, session: str, now: float, pressure: Pressure = THRASH) -> bool:
    """Whether it may go."""
    return admission.ask(session, 100, pressure, now) is None


@pytest.mark.parametrize(
    "change",
    [
        {"live_tokens": LIVE_SHARE * 1_000 - 100},
        {"busy_share": BUSY_SHARE},
        {"return_share": RETURN_SHARE - 0.01},
        {"live_tokens": 0, "pool_tokens": 10},
        {"idle_replicas": 1},
    ],
    ids=["room for it", "an idle cluster", "an open loop", "nobody else is there", "a replica with nothing to do"],
)
def test_a_new_session_waits_only_when_all_of_it_is_true(change: dict[str, float]) -> None:
    """Live ones fill the caches, prefills fill the time, sessions return, and every replica has something to do."""
    assert not asked(Admission(), "a", 0.0)
    assert asked(Admission(), "a", 0.0, THRASH._replace(**change))  # type: ignore[arg-type]


def test_those_who_wait_go_in_the_order_in_which_they_came() -> None:
    """However often the others ask, and whoever comes when it is calm again."""
    admission = Admission()
    assert [asked(admission, name, 0.0) for name in "abc"] == [False, False, False]
    assert [asked(admission, name, 1.0, CALM) for name in "cbd"] == [False, False, False]
    assert [asked(admission, name, 1.0, CALM) for name in "abcd"] == [True, True, True, True]
    assert len(admission) == 0


def test_max_hold_s_stops_a_session_from_waiting_for_ever() -> None:
    """Then it goes, against the rule, and that is counted."""
    admission = Admission()
    now = 0.0
    while not asked(admission, "a", now):
        now += HOLD_ASK_S
    assert MAX_HOLD_S <= now <= MAX_HOLD_S + HOLD_ASK_S
    assert repr(admission) == "<Admission held=0 late=1>"


def test_held_forgotten_s_stops_clients_that_vanished_from_blocking_the_rest() -> None:
    """Whoever leaves in order gives up its place at once."""
    admission = Admission()
    for name in "abc":
        asked(admission, name, 0.0)
    admission.leave("a")
    admission.leave("nobody")
    assert not asked(admission, "c", HELD_FORGOTTEN_S - 1, CALM)
    assert asked(admission, "c", HELD_FORGOTTEN_S + 1, CALM)


def test_max_held_stops_names_from_filling_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it sessions are let through: a guard must not become the fault."""
    monkeypatch.setattr(admission_module, "MAX_HELD", 2)
    admission = Admission()
    assert [asked(admission, name, 0.0) for name in "abcd"] == [False, False, True, True]
    assert len(admission) == 2


def test_hold_ask_s_stops_held_requests_from_asking_without_a_pause() -> None:
    """Each is told when to ask again, and why it waits."""
    hold = Admission().ask("a", 100, THRASH, 0.0)
    assert hold is not None
    assert hold.again_in_s == HOLD_ASK_S
    assert hold.reason == "1 new sessions wait: live ones fill 90% of the caches, prefills 50% of the time"


ROUNDS = st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, HELD_FORGOTTEN_S - 0.1), st.booleans()))


@given(ROUNDS)
@settings(deadline=None)
def test_nobody_waits_longer_than_the_bound_whatever_happens(rounds: list[tuple[str, float, bool]]) -> None:
    """As long as it asks: all who wait do, one after the other, and then one that may be new."""
    admission, now, since = Admission(), 0.0, dict[str, float]()
    for newcomer, step_s, is_calm in rounds:
        now += step_s
        for name in [*since, newcomer]:
            if asked(admission, name, now, CALM if is_calm else THRASH):
                since.pop(name, None)
            else:
                assert now - since.setdefault(name, now) < MAX_HOLD_S
