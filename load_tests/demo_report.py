"""The demo's results as a table, as JSON and as one picture."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from load_tests.demo_arms import ARMS, ArmsResult
from load_tests.stats import machine, versions

if TYPE_CHECKING:
    from pathlib import Path

    from load_tests.demo_routing import RoutingSummary


def as_data(arms: ArmsResult, routing: dict[str, RoutingSummary]) -> dict[str, Any]:
    """The content of demo.json."""
    return {
        "prompt_tokens": arms.prompt_tokens,
        "arms": {arm: msgspec.to_builtins(arms.summary(arm)) for arm in ARMS},
        "ratio_varying": arms.ratio("varying"),
        "ratio_stripped": arms.ratio("stripped"),
        "routing": {name: msgspec.to_builtins(summary) for name, summary in routing.items()},
        "versions": versions(),
        "machine": machine(),
    }


def table(data: dict[str, Any]) -> str:
    """What a person reads."""
    lines = [
        f"Agent prompt of {data['prompt_tokens']:,} tokens, both APIs, {data['arms']['stable']['n']} requests an arm",
        f"{'arm':<14}{'TTFT p50 ms':>12}{'p99 ms':>10}{'cached tokens':>15}{'× stable':>10}",
    ]
    ratios = {"stable": 1.0, "varying": data["ratio_varying"], "stripped": data["ratio_stripped"]}
    for arm, row in data["arms"].items():
        lines.append(
            f"{arm:<14}{row['ttft_ms_p50']:>12.1f}{row['ttft_ms_p99']:>10.1f}{row['cached_tokens_p50']:>15,}"
            f"{ratios[arm]:>10.2f}"
        )
    lines += ["", "Nine conversations of five turns on two replicas whose pools hold five each"]
    lines.append(f"{'router':<14}{'hit rate':>12}{'p50 ms':>10}{'p99 ms':>15}")
    for name, row in data["routing"].items():
        lines.append(f"{name:<14}{row['hit_rate']:>12.3f}{row['ttft_ms_p50']:>10.1f}{row['ttft_ms_p99']:>15.1f}")
    return "\n".join(lines)


def write(data: dict[str, Any], arms: ArmsResult, folder: Path) -> None:
    """Write demo.json and demo.png into `folder`, which is made when missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "demo.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    _draw(data, arms, folder / "demo.png")


def _draw(data: dict[str, Any], arms: ArmsResult, path: Path) -> None:
    import matplotlib  # noqa: PLC0415 - slow to import, needed once

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415 - after the backend is chosen

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for arm, color in zip(ARMS, ("#4878a8", "#c0504d", "#5a9e5a"), strict=True):
        ttfts = [sample.ttft_ms for sample in arms.samples[arm]]
        left.plot(range(1, len(ttfts) + 1), ttfts, "o-", color=color, label=arm, markersize=4)
    left.set(yscale="log", xlabel="request", ylabel="time to first text, ms")
    left.set_title(f"{data['prompt_tokens']:,}-token agent prompt")
    left.legend()
    names = list(data["routing"])
    bars = right.bar(names, [data["routing"][name]["hit_rate"] for name in names], color=["#c0504d", "#5a9e5a"])
    right.bar_label(bars, fmt="%.2f")
    right.set(ylim=(0, 1), ylabel="prompt tokens found in cache", title="9 conversations, 2 replicas")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
