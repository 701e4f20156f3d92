"""Where a value lies in a picture, and which values an axis names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Kind = Literal["linear", "log"]
SMALLEST: Final = 1e-6
"""Less is drawn as if it were nothing."""


class Scale(NamedTuple):
    """From values between `low` and `high` to coordinates between `start` and `end`; what lies outside is drawn at
    the edge. A log scale has a positive `low`."""

    low: float
    high: float
    start: float
    end: float
    kind: Kind = "linear"

    def at(self, value: float) -> float:
        """The coordinate of `value`."""
        low, high, value = (self._measure(one) for one in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.0
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        """About `most` round values within the scale, ascending."""
        return _decades(self.low, self.high, most) if self.kind == "log" else _round_steps(self.low, self.high, most)

    def _measure(self, value: float) -> float:
        return math.log10(max(value, self.low)) if self.kind == "log" else value


def fitting(values: Iterable[float], *, start: float, end: float, kind: Kind = "linear") -> Scale:
    """A scale that holds all of `values`: linear ones from zero, both up to a round number."""
    known = [value for value in values if math.isfinite(value) and value >= SMALLEST]
    if kind == "log":
        low, high = _step_below(min(known, default=1.0)), _step_above(max(known, default=1.0))
        return Scale(low, high if high > low else low * 10, start, end, "log")
    top = max([*known, 0.0])
    step = _round_step(top, 4) if top > 0 else 1.0
    return Scale(0.0, math.ceil(round(top / step, 9)) * step if top > 0 else 1.0, start, end)


def kind_for(values: Sequence[float]) -> Kind:
    """Log where the values differ by a factor of more than thirty, so that small ones are still seen."""
    positive = [value for value in values if value >= SMALLEST]
    return "log" if positive and max(positive) / min(positive) > 30 else "linear"


def _round_step(width: float, most: int) -> float:
    """1, 2 or 5 times a power of ten, so that `most` of them fill `width` or nearly."""
    raw = width / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * one for one in (1, 2, 5, 10) if power * one >= raw * 0.999)


def _round_steps(low: float, high: float, most: int) -> list[float]:
    if high <= low:
        return [low]
    step = _round_step(high - low, most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{at * step:.12g}") for at in range(first, last + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leads in ((1, 2, 5), (1, 3), (1,)):
        found = [lead * 10.0**power for power in powers for lead in leads]
        inside = [one for one in found if low * 0.999 <= one <= high * 1.001]
        if len(inside) <= most + 2:
            break
    return inside


def _step_below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(power * lead for lead in (1, 2, 5) if power * lead <= value * 1.001)


def _step_above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return min(power * lead for lead in (1, 2, 5, 10) if power * lead >= value * 0.999)
