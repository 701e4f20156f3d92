"""Figures of the real-process tests: printed, and kept in out/real_processes.json for docs/reliability.md."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from tests.real.leading import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = REPOSITORY / "out" / "real_processes.json"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def record_times(promise: str, seconds: Sequence[float]) -> None:
    """Median, p99 and maximum, in milliseconds."""
    figures = {"p50_ms": percentile(seconds, 0.5), "p99_ms": percentile(seconds, 0.99), "max_ms": max(seconds)}
    record(promise, {"n": len(seconds)} | {name: round(value * 1e3, 1) for name, value in figures.items()})


def record(promise: str, figures: dict[str, float]) -> None:
    """Keep figures under the name of what they measure, in place of older ones."""
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    kept[promise] = figures
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    print(f"\n{promise}: {figures}")
