"""A ledger second by second."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

from load_tests.swarm.summary import Percentiles, Second

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from load_tests.swarm.ledger import Entry

MAX_STEPS: Final = 3_600
"""So many steps a series has at most; longer runs have longer steps."""


def step_s_for(ended_s: float) -> float:
    """Whole seconds, one where that is enough."""
    return float(max(1, -(-int(ended_s) // MAX_STEPS)))


def seconds_of(entries: Sequence[Entry], *, step_s: float, warmup_s: float) -> list[Second]:
    """The series, without holes from the start to the last entry. A request belongs to the step that it was due in."""
    if not entries:
        return []
    steps = 1 + int(max(max(entry.due_s, entry.last_token_s) for entry in entries) // step_s)
    groups: list[list[Entry]] = [[] for _ in range(steps)]
    begun, ended = [0] * steps, [0] * steps
    for entry in entries:
        at = int(entry.due_s // step_s)
        groups[at].append(entry)
        begun[at] += 1
        ended[int(entry.last_token_s // step_s)] += 1
    in_flight = accumulate(more - less for more, less in zip(begun, ended, strict=True))
    return [
        _second(group, at_s=at * step_s, warmup_s=warmup_s, in_flight=left)
        for at, (group, left) in enumerate(zip(groups, in_flight, strict=True))
    ]


def _second(entries: Sequence[Entry], *, at_s: float, warmup_s: float, in_flight: int) -> Second:
    return Second(
        at_s=at_s,
        is_measured=all(entry.is_measured for entry in entries) if entries else at_s >= warmup_s,
        requests=len(entries),
        completed=sum(entry.outcome == "completed" for entry in entries),
        cancelled=sum(entry.outcome == "cancelled" for entry in entries),
        errors=sum(entry.is_error for entry in entries),
        in_flight=in_flight,
        prompt_tokens=sum(entry.prompt_tokens or 0 for entry in entries),
        cached_tokens=sum(entry.cached_tokens or 0 for entry in entries),
        ideal_tokens=round(sum(entry.ideal_tokens for entry in entries), 1),
        output_tokens=sum(entry.output_tokens or 0 for entry in entries),
        ttft_ms=_percentiles(entry.ttft_ms for entry in entries),
        itl_ms=_percentiles(entry.itl_ms for entry in entries),
        e2e_ms=_percentiles(entry.e2e_ms for entry in entries if entry.outcome == "completed"),
    )


def _percentiles(values: Iterable[float | None]) -> Percentiles | None:
    return Percentiles.of(value for value in values if value is not None)
