"""Verdicts of one or more servers, kept as a JSON file between runs."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from tests.conformance.protocol.probe import Verdict  # noqa: TC001 - msgspec reads the annotation

if TYPE_CHECKING:
    from pathlib import Path


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One server's run."""

    version: str
    date: str
    machine: str
    verdicts: dict[str, Verdict]


def result_of(version: str, verdicts: dict[str, Verdict]) -> Result:
    """Stamped with today and this machine."""
    today = datetime.now(UTC).date().isoformat()
    machine = f"{os.cpu_count()} cores ({platform.machine()}), no GPU, Python {platform.python_version()}"
    return Result(version=version, date=today, machine=machine, verdicts=verdicts)


def load(path: Path | None) -> dict[str, Result]:
    """By server; empty when there is no file yet."""
    if path is None or not path.exists():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Result])


def save(path: Path, results: dict[str, Result]) -> None:
    """Readable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
