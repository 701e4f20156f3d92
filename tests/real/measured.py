"""Figures of the real-process tests: printed, and kept in out/real_processes.json for docs/reliability.md."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from tests.real.leading import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Sequence

PAUSE_S = 0.05
RESULTS = REPOSITORY / "out" / "real_processes.json"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def record_times(promise: str, seconds: Sequence[float], *, pauses_s: Sequence[float] = ()) -> None:
    """Median, p99 and maximum, in milliseconds.

    `pauses_s` says for each time how long this process itself did not run meanwhile: on a crowded machine that, and not
    the promise, is what the longest times measure, so that those with a pause above PAUSE_S are given apart."""
    calm = [one for one, pause in zip(seconds, pauses_s, strict=True) if pause < PAUSE_S] if pauses_s else seconds
    figures = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    found = {"n": len(calm)} | {name: round(percentile(calm or seconds, at) * 1e3, 1) for name, at in figures.items()}
    paused = len(seconds) - len(calm)
    record(promise, found | ({"paused": paused, "paused_max_ms": round(max(seconds) * 1e3, 1)} if paused else {}))


def record(promise: str, figures: dict[str, float]) -> None:
    """Keep figures under the name of what they measure, in place of older ones."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    kept[promise] = figures
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    print(f"\n{promise}: {figures}")
