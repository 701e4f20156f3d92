"""What placing a prompt on a replica costs, in seconds: its own time to first token, and what it does to others.

    cost = wait + compute + decodes + others + room

wait      work of others before it is done, under the engine's own step rule (router/step_rule.py), times s per token
compute   its own uncached tokens, times s per token of this replica
decodes   each of its steps, those of its answer too, is longer by what each running decode takes of it
others    arrivals per s · delay of each of those who come while it is there / (1 - busy share of the replica)
room      tokens of live sessions that it drives out of the pool, computed again once

A prompt that computes for P s behind a wait of W s delays those who come in that time by P each, then by what is left
of it: arrivals · P · (W + P/2). The queue that forms meanwhile lasts 1 / (1 - busy share) times as long. Where steps
are shared, a short prompt behind it loses one share of one step, not P.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from router.step_rule import WHOLE_PROMPT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.step_rule import StepRule


class Standing(NamedTuple):
    """How one replica stands apart from its blocks. `part_tokens` is the rule's, kept
    ready. Earlier prompts have `backlog_tokens` left to compute, of which `ahead` is each one's part, oldest first;
    `slowness` how many times longer than its siblings it takes for a token; `arrivals_per_s` what it is sent, divided
    by the share of its time that is free; `overdue_s` by how much its oldest prompt is late; `live_room_tokens` what
    its pool can take before live sessions lose blocks."""

    rule: StepRule
    part_tokens: int = WHOLE_PROMPT
    backlog_tokens: int = 0
    ahead: Sequence[int] = ()
    slowness: float = 1.0
    arrivals_per_s: float = 0.0
    overdue_s: float = 0.0
    live_room_tokens: int = 2**53


def delay_s2(wait_s: float, compute_s: float, slice_s: float, short_share: float) -> float:
    """Delay of all that follow a prompt together, per arrival rate: seconds of delay times seconds of arrivals.

    `short_share` of them lose `slice_s` each, one share of one step; the others what it computes. Without sharing a
    slice is all of it, and both are the same."""
    slice_s = min(slice_s, compute_s)
    lasting_s = wait_s + compute_s
    long_s2 = compute_s * (lasting_s - compute_s / 2)
    return long_s2 + short_share * (slice_s * (lasting_s - slice_s / 2) - long_s2)
