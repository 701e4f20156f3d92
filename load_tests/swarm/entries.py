"""From a request and its answer to one line of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from load_tests.swarm.ledger import Entry

if TYPE_CHECKING:
    from load_tests.swarm.endpoint import Answer
    from load_tests.swarm.ledger import Outcome
    from load_tests.swarm.settings import Settings


class Asked(NamedTuple):
    """A request as it is sent. Times are seconds of the run. `limit` is whose end comes first if no answer does."""

    agent: str
    parent: str | None
    session: int
    turn: int
    due_s: float
    sent_s: float
    prompt_chars: int
    seen_chars: int
    limit: Literal["request", "run"]


def unfinished(asked: Asked, settings: Settings, *, now_s: float) -> Entry:
    """The run was stopped at `now_s`, before an answer."""
    return _entry(asked, settings, asked.sent_s, "unfinished", last_token_s=round(max(asked.sent_s, now_s), 6))


def entry_of(asked: Asked, answer: Answer, settings: Settings, *, start_s: float) -> Entry:
    """`start_s` is the start of the run on the answer's clock. What was cut by the end of the run is unfinished, not
    timed out. A timer may ring a moment early: nothing is sent before it is due."""
    stream = answer.stream
    outcome: Outcome = answer.outcome
    error = answer.error
    sent_s = max(asked.due_s, answer.sent_s - start_s)
    first_s = None if stream.first_s is None else max(sent_s, stream.first_s - start_s)
    ended_s = answer.ended_s if stream.last_s is None or outcome != "completed" else stream.last_s
    last_s = max(sent_s if first_s is None else first_s, ended_s - start_s)
    if outcome == "timed_out" and asked.limit == "run":
        outcome, error = "unfinished", None
    return _entry(
        asked,
        settings,
        sent_s,
        outcome,
        last_token_s=round(last_s, 6),
        first_token_s=None if first_s is None else round(first_s, 6),
        status=answer.status,
        prompt_tokens=stream.usage.get("prompt_tokens"),
        cached_tokens=stream.usage.get("cached_tokens"),
        output_tokens=_output_tokens(answer),
        replica=answer.replica,
        error=error,
        longest_gap_s=round(stream.longest_gap_s, 6),
    )


def _output_tokens(answer: Answer) -> int | None:
    """As told at the end; of an answer that did not come to its end, the pieces that came."""
    if answer.outcome == "completed":
        return answer.stream.usage.get("output_tokens")
    return answer.stream.pieces if answer.status == 200 else None


def _entry(asked: Asked, settings: Settings, sent_s: float, outcome: Outcome, **more: object) -> Entry:
    return Entry(
        agent=asked.agent,
        parent=asked.parent,
        session=asked.session,
        turn=asked.turn,
        due_s=round(asked.due_s, 6),
        sent_s=round(sent_s, 6),
        outcome=outcome,
        prompt_chars=asked.prompt_chars,
        seen_chars=asked.seen_chars,
        is_measured=asked.due_s >= settings.warmup_s,
        **more,  # type: ignore[arg-type]
    )
