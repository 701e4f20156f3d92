"""A reset is announced before the engine says so; its older news, still on its way, must not bring blocks back."""

from __future__ import annotations

from router.wire import Cleared, Stored
from tests.workers.support import CLEARED, MODEL, chain, payload, removed, stored
from workers.relay import Relay

TWO = stored([11, 12], [1, 2, 3, 4])
NEXT = stored([13], [5, 6], parent_block_hash=12)


def test_what_was_said_before_the_reset_counts_no_more() -> None:
    relay = Relay(model=MODEL)
    relay.apply(0, payload(TWO))
    assert relay.reset(relay.resets_known) == (Cleared(),)
    assert relay.apply(1, payload(NEXT, removed([11]))).ops == ()
    assert relay.apply(2, payload(TWO, CLEARED, stored([21], [9, 9]))).ops == (Cleared(), Stored("gpu", chain([9, 9])))
    relay.check_integrity()


def test_each_reset_waits_for_its_own_word() -> None:
    relay = Relay(model=MODEL)
    relay.reset(relay.resets_known)
    relay.reset(relay.resets_known)
    relay.apply(0, payload(CLEARED, TWO))
    assert relay.snapshot() == ()
    relay.apply(1, payload(CLEARED, TWO))
    assert relay.snapshot() == (Stored("gpu", chain([1, 2, 3, 4])),)


def test_a_word_that_overtakes_the_engines_reply_is_not_waited_for_again() -> None:
    """Else what came after it would never be shown."""
    relay = Relay(model=MODEL)
    known = relay.resets_known
    relay.apply(0, payload(CLEARED, TWO))
    assert relay.reset(known) == ()
    assert relay.snapshot() == (Stored("gpu", chain([1, 2, 3, 4])),)
    relay.apply(1, payload(NEXT))
    assert relay.snapshot() == (Stored("gpu", chain([1, 2, 3, 4, 5, 6])),)


def test_the_word_of_an_earlier_reset_is_not_taken_for_that_of_a_later_one() -> None:
    relay = Relay(model=MODEL)
    relay.reset(relay.resets_known)
    known = relay.resets_known
    relay.apply(0, payload(CLEARED, TWO))
    assert relay.reset(known) == (Cleared(),)
    assert relay.apply(1, payload(NEXT)).ops == ()


def test_a_word_that_may_have_been_lost_is_not_waited_for() -> None:
    """Else nothing would ever be shown again."""
    relay = Relay(model=MODEL)
    relay.apply(0, payload(TWO))
    relay.reset(relay.resets_known)
    relay.apply(2, payload(TWO))
    assert relay.snapshot() == (Stored("gpu", chain([1, 2, 3, 4])),)


def test_a_clear_of_our_own_is_followed_by_nothing_of_the_engines() -> None:
    """Nothing is ignored after it."""
    relay = Relay(model=MODEL)
    relay.apply(0, payload(TWO))
    relay.clear()
    relay.apply(1, payload(TWO))
    assert relay.snapshot() == (Stored("gpu", chain([1, 2, 3, 4])),)
