"""Rows of a bench: medians over rounds, beside the peer's where it did the same."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any, Final

from load_tests.stats import machine, versions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Samples = dict[str, list[float]]
UNITS: Final = {
    "_us": "us",
    "_us_per_token": "us",
    "blocks_per_s": "blocks/s",
    "bytes_per_block": "bytes",
    "_ms": "ms",
    "_mb": "MiB",
    "requests_per_s": "1/s",
    "chunks_per_s": "1/s",
    "events_per_s": "1/s",
    "tokens_per_s": "1/s",
    "_tokens": "tokens",
}
ROUNDING: Final = ((10, 3), (100, 2), (10_000, 1))  # values below, decimal places


def as_data(ours: Samples, theirs: Samples, peer_versions: dict[str, str]) -> dict[str, Any]:
    """The report. `ratio` is our value by the peer's: below 1 is better for times and bytes, above 1 for rates."""
    return {
        "rows": [_row(name, values, theirs.get(name)) for name, values in ours.items()],
        "machine": machine(),
        "versions": versions() | peer_versions,
    }


def write(data: Mapping[str, Any], file: Path) -> None:
    """As JSON; the folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def as_text(data: Mapping[str, Any]) -> str:
    """The same for people."""
    width = max(len(row["name"]) for row in data["rows"])
    lines = [f"{'row':<{width}}  {'value':>14} {'unit':<9} {'peer':>14} {'ratio':>7}"]
    for row in data["rows"]:
        peer, ratio = (f"{row[key]:,}" if row[key] is not None else "" for key in ("peer_value", "ratio"))
        budget = f"  budget {row['budget']:,}" if row.get("budget") else ""
        lines.append(f"{row['name']:<{width}}  {row['value']:>14,} {row['unit']:<9} {peer:>14} {ratio:>7}{budget}")
    lines.append(f"{data['machine']['cpu']}, load {data['machine']['load_1min']}")
    return "\n".join(lines)


def _row(name: str, values: list[float], peer_values: list[float] | None) -> dict[str, Any]:
    value = statistics.median(values)
    peer_value = statistics.median(peer_values) if peer_values else None
    return {
        "name": name,
        "value": _rounded(value),
        "unit": next(unit for suffix, unit in UNITS.items() if name.endswith(suffix)),
        "peer_value": None if peer_value is None else _rounded(peer_value),
        "ratio": round(value / peer_value, 3) if peer_value else None,
    }


def _rounded(value: float) -> float:
    digits = next((digits for below, digits in ROUNDING if value < below), None)
    return round(value, digits)
