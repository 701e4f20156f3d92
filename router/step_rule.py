"""How much an engine computes before a new prompt is done, under the rule by which it shares its steps.

A step computes at most `step_tokens`, in the order in which prompts came. With `share_tokens` one prompt takes at most
that much of it while others are there, so that short prompts are done beside long ones; without, each takes all it can.
Work is counted in prompt tokens: how long a token takes is for others to learn (router/rates.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from router.limits import MAX_AHEAD

if TYPE_CHECKING:
    from collections.abc import Sequence


class StepRule(NamedTuple):
    """The two numbers of `ReplicaInfo`; zeros mean not told, and first come first served."""

    step_tokens: int = 0
    share_tokens: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether a short prompt can overtake a long one."""
        return 0 < self.share_tokens < self.step_tokens

    @property
    def part_tokens(self) -> int:
        """Most tokens of one step that one prompt takes beside others."""
        return (self.share_tokens if self.is_shared else self.step_tokens) or WHOLE_PROMPT

    def steps(self, tokens: int) -> int:
        """Steps that a prompt with so much to compute takes part in; at least one."""
        return -(-tokens // self.part_tokens) if tokens > 0 else 1


WHOLE_PROMPT: Final = 2**53
FIRST_COME: Final = StepRule()


def ahead_tokens(rule: StepRule, ahead: Sequence[int], tokens: int) -> int:
    """Tokens of others that are computed before a prompt with `tokens` to compute is done.

    `ahead` is what earlier prompts have left, in the order in which they came. At most all of it; with room for all in
    one step, at most (steps of this prompt) x (what others take of each). O(len(ahead)²), bounded by MAX_AHEAD.
    """
    if not ahead:
        return 0
    if not rule.is_shared:
        return sum(ahead)
    share = rule.share_tokens
    if (len(ahead) + 1) * share <= rule.step_tokens:
        most = rule.steps(tokens) * share
        return sum([min(left, most) for left in ahead])
    return _played(rule, [*ahead], max(tokens, 1))


def _played(rule: StepRule, left: list[int], mine: int) -> int:
    """Play the steps, as many alike at once as there are."""
    computed, left = 0, [*left, mine]
    while True:
        room, parts = rule.step_tokens, []
        for tokens in left:
            part = min(tokens, rule.share_tokens, room)
            parts.append(part)
            room -= part
        alike = min([tokens // part for tokens, part in zip(left, parts, strict=True) if part])
        left = [tokens - alike * part for tokens, part in zip(left, parts, strict=True)]
        computed += alike * sum(parts)
        if not left[-1]:
            return computed - mine
        left = [tokens for tokens in left if tokens]


def left_of(prompts: Sequence[int], backlog_tokens: int, rule: StepRule) -> list[int]:
    """What earlier prompts have left when `backlog_tokens` are left of all of them: the first have been worked on.

    More than they had together is somebody else's, and stands first. Beyond MAX_AHEAD the last are taken as one.
    """
    surplus = backlog_tokens - sum(prompts)
    left = [surplus, *prompts] if surplus > 0 else [*prompts]
    done = max(-surplus, 0)
    together = max(rule.step_tokens // rule.share_tokens, 1) if rule.is_shared else 1
    while done > 0 and left:
        part = -(-done // min(together, len(left)))
        for at in range(min(together, len(left))):
            taken = min(left[at], part, done)
            left[at] -= taken
            done -= taken
        left = [tokens for tokens in left if tokens]
    if len(left) > MAX_AHEAD:
        left[MAX_AHEAD - 1 :] = [sum(left[MAX_AHEAD - 1 :])]
    return left
