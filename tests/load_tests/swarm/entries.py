"""Ledger entries for tests: any that a run could write, and single ones with a few fields of interest."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

from hypothesis import settings
from hypothesis import strategies as st

from load_tests.swarm.ledger import Entry, Outcome

CALM = settings(deadline=None, max_examples=30)
"""For properties on a busy machine."""


def entry(**fields: Any) -> Entry:
    """A completed request of one second from 1.0 on, changed by `fields`."""
    known: dict[str, Any] = {
        "agent": "agent-000",
        "session": 0,
        "turn": 0,
        "due_s": 1.0,
        "sent_s": 1.0,
        "first_token_s": 1.2,
        "last_token_s": 2.0,
        "outcome": "completed",
        "status": 200,
        "prompt_tokens": 100,
        "cached_tokens": 50,
        "output_tokens": 9,
        "replica": "a",
        "prompt_chars": 400,
        "seen_chars": 320,
    }
    return Entry(**(known | fields))


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """Any entry that keeps its own rules."""
    due_s = draw(st.floats(0, 50))
    sent_s = due_s + draw(st.floats(0, 2))
    first_s = sent_s + draw(st.floats(0, 2))
    outcome: Outcome = draw(st.sampled_from(get_args(Outcome)))
    errors: dict[Outcome, str] = {"refused": "http_529", "failed": "truncated", "timed_out": "timeout"}
    has_token = outcome == "completed" or (outcome != "refused" and draw(st.booleans()))
    prompt = draw(st.integers(1, 1000))
    chars = draw(st.integers(1, 4000))
    return Entry(
        agent="a",
        session=0,
        turn=draw(st.integers(0, 3)),
        due_s=due_s,
        sent_s=sent_s,
        first_token_s=first_s if has_token else None,
        last_token_s=first_s + draw(st.floats(0, 2)),
        outcome=outcome,
        status=200 if has_token else None,
        prompt_tokens=prompt if has_token else None,
        cached_tokens=draw(st.integers(0, prompt)) if has_token else None,
        output_tokens=draw(st.integers(1, 50)) if has_token else None,
        replica=draw(st.sampled_from(["a", "b", "c"])) if has_token else None,
        error=errors.get(outcome),
        prompt_chars=chars,
        seen_chars=draw(st.integers(0, chars)),
        is_measured=due_s >= 10,
    )


Sequenced = TypeVar("Sequenced", str, list[int])


def common(one: Sequenced, other: Sequenced) -> Sequenced:
    """The longest beginning that both have."""
    shortest = min(len(one), len(other))
    return one[: next((at for at in range(shortest) if one[at] != other[at]), shortest)]
