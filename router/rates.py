"""What is learnt of a deployment while it serves: how fast replicas compute, what decodes cost, how much arrives.

Nothing here reads a clock or draws lots. Everything starts from a stated guess and forgets the past exponentially.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from router.limits import ARRIVALS_S, MAX_BUSY_SHARE, RATE_HIGH, RATE_LOW, SLOWNESS_FORGOTTEN_S, SLOWNESS_MAX

if TYPE_CHECKING:
    from router.step_rule import StepRule

RATE_DEFAULT: Final = 10_000.0  # tokens/s of a 32B model on an H100: wrong by 10, it is right after RATE_FIRST prompts
RATE_WEIGHT: Final = 0.1
RATE_FIRST: Final = 8  # large prompts that move the rate fast, and say nothing of their replicas
RATE_MIN_TOKENS: Final = 2_048  # below, the time to first token is mostly waiting for a step
SLOWNESS_WEIGHT: Final = 0.25  # of one prompt: three slow ones in a row are seen
SLOWNESS_NOISE: Final = 1.3  # replicas within this factor of the others are alike: queues make times differ as much
DECODE_DEFAULT_S: Final = 0.0005  # by which one decode makes a step longer, until it is known
DECODE_MAX_S: Final = 0.005
STEP_MAX_S: Final = 0.5  # beyond, a prompt waited for something else, such as room in the pool
DECODE_PRIOR: Final = 25.0  # decodes² of variance: as if so much had been seen of the default
DECODE_WEIGHT: Final = 0.02
SHORT_WEIGHT: Final = 0.02
ANSWER_WEIGHT: Final = 0.02
ANSWER_STEPS: Final = 100  # of an agent's answer, until it is known
STEP_DEFAULT_S: Final = 0.03
STEP_MIN_S: Final = 0.001


class Observed(NamedTuple):
    """One prefill: the tokens computed until its first token, steps that took, the decodes beside it, and how long."""

    tokens: int
    steps: int
    running: int
    elapsed_s: float


class Paces:
    """Seconds per prompt token and per decode and step, of all replicas of one deployment together."""

    def __init__(self) -> None:
        self.tokens_per_s = RATE_DEFAULT
        self.decode_s = DECODE_DEFAULT_S
        self._running = self._spread = 0.0
        self._step_s = STEP_DEFAULT_S
        self._together = 0.0
        self.answer_s = ANSWER_STEPS * STEP_DEFAULT_S
        self._large = 0
        self.short_share = 0.0  # of recent prompts, those that compute no more than one share of a step

    def __repr__(self) -> str:
        return f"<Paces {self.tokens_per_s:.0f} tokens/s, {self.decode_s * 1e3:.2f} ms per decode>"

    def observe(self, seen: Observed, replica: Slowness, now: float) -> None:
        """Take one request of one replica. Large ones tell of the prefill rate, small ones of decodes."""
        if seen.elapsed_s <= 0:
            return
        if seen.tokens >= RATE_MIN_TOKENS:
            pure_s = max(seen.elapsed_s - seen.steps * seen.running * self.decode_s, seen.elapsed_s / 2)
            rate = min(max(seen.tokens / pure_s, self.tokens_per_s / 4), self.tokens_per_s * 4)
            self._large += 1
            if self._large > RATE_FIRST:  # before, it is the guess that is wrong, not the replica
                replica.observe(self.tokens_per_s / rate, now)
            mixed = self.tokens_per_s * (rate / self.tokens_per_s) ** max(RATE_WEIGHT, 1 / self._large)
            self.tokens_per_s = min(max(mixed, RATE_LOW), RATE_HIGH)
        elif seen.elapsed_s < STEP_MAX_S * seen.steps:
            self._observe_step(seen.running, (seen.elapsed_s - seen.tokens / self.tokens_per_s) / seen.steps)

    @property
    def answer_steps(self) -> float:
        """Steps that an answer takes part in, on average."""
        return self.answer_s / max(self._step_s, STEP_MIN_S)

    def observe_answer(self, lasted_s: float) -> None:
        """Take one answer, from its first token to its end."""
        self.answer_s += ANSWER_WEIGHT * (lasted_s - self.answer_s)

    def note_prompt(self, uncached_tokens: int, rule: StepRule) -> None:
        """A prompt with so much to compute goes to a replica of this rule."""
        is_short = rule.is_shared and uncached_tokens <= rule.share_tokens
        self.short_share += SHORT_WEIGHT * (is_short - self.short_share)

    def _observe_step(self, running: int, step_s: float) -> None:
        """Exponentially weighted regression of a step's length on the decodes in it."""
        apart, longer = running - self._running, max(step_s, 0.0) - self._step_s
        self._running += DECODE_WEIGHT * apart
        self._step_s += DECODE_WEIGHT * longer
        self._spread = (1.0 - DECODE_WEIGHT) * (self._spread + DECODE_WEIGHT * apart * apart)
        self._together = (1.0 - DECODE_WEIGHT) * (self._together + DECODE_WEIGHT * apart * longer)
        slope = (self._together + DECODE_DEFAULT_S * DECODE_PRIOR) / (self._spread + DECODE_PRIOR)
        self.decode_s = min(max(slope, 0.0), DECODE_MAX_S)


class Slowness:
    """How many times longer one replica takes for a token than its siblings. 1.0 while that may be chance, and for one
    that is faster: else whoever is tried first would look fast and be given everything. It is forgotten when nothing is
    seen of it, so that a replica that has recovered is tried again."""

    __slots__ = ("_log", "_seen_at", "factor")

    def __init__(self) -> None:
        self._log = 0.0
        self._seen_at = 0.0
        self.factor = 1.0

    def observe(self, ratio: float, now: float) -> None:
        """Take one prefill that took `ratio` times as long as the deployment's rate says."""
        self._forget(now)
        self._log += SLOWNESS_WEIGHT * (math.log(ratio) - self._log)
        self._settle()

    def refresh(self, now: float) -> None:
        """Let time pass."""
        if self.factor != 1.0:
            self._forget(now)
            self._settle()

    def _forget(self, now: float) -> None:
        self._log *= 0.5 ** ((now - self._seen_at) / SLOWNESS_FORGOTTEN_S)
        self._seen_at = now

    def _settle(self) -> None:
        self._log = min(max(self._log, -math.log(SLOWNESS_MAX)), math.log(SLOWNESS_MAX))
        factor = math.exp(self._log)
        self.factor = factor if factor >= SLOWNESS_NOISE else 1.0


class Arrivals:
    """Requests per second that one replica is sent, and the share of its time that their prefills fill."""

    __slots__ = ("_at", "_busy_s", "_requests", "busy_share", "per_s")

    def __init__(self) -> None:
        self._at = 0.0
        self._requests = self._busy_s = 0.0
        self.per_s = self.busy_share = 0.0

    def note(self, compute_s: float, now: float) -> None:
        """One more, with so much to compute."""
        self.refresh(now)
        self._requests += 1.0
        self._busy_s += compute_s
        self._settle()

    def refresh(self, now: float) -> None:
        """Let time pass; the past fades with ARRIVALS_S."""
        if self._requests:
            faded = math.exp((self._at - now) / ARRIVALS_S)
            self._requests *= faded
            self._busy_s *= faded
            self._settle()
        self._at = now

    def _settle(self) -> None:
        self.per_s = self._requests / ARRIVALS_S
        self.busy_share = min(self._busy_s / ARRIVALS_S, MAX_BUSY_SHARE)
