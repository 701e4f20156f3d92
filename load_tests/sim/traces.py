"""Trace files as workloads, by what their lines look like; halves of them for tuning and for reporting."""

from __future__ import annotations

import gzip
import json
from enum import StrEnum
from typing import TYPE_CHECKING

from load_tests.sim.closed_loop import Layout, closed_loop
from load_tests.sim.mooncake import open_loop, read_mooncake
from load_tests.sim.sessions import Heads, Session, read_sessions, session_of
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from load_tests.sim.work import Workload


class Half(StrEnum):
    """Parameters are chosen on one half and reported on the other. Sessions are taken in turn (their order in the file
    is random): the first, third, … tune. An open loop is cut in the middle of its requests: the first half tunes."""

    ALL = "all"
    TUNE = "tune"
    REPORT = "report"


def is_sessions(path: Path) -> bool:
    """Whether the lines of a trace are whole sessions. Raises `InvalidRequest` for a file that is no trace."""
    try:
        with gzip.open(path, "rt") as lines:
            first = json.loads(next(lines))
    except (OSError, StopIteration, ValueError) as fault:
        raise InvalidRequest(f"{path} is not a gzipped trace: {fault}") from None
    return "requests" in first


def workload_of(path: Path, layout: Layout, half: Half = Half.ALL) -> Workload:
    """A trace laid out: a closed loop of its sessions, or its requests at their timestamps (`rate_scale` and
    `requests` of the layout count then, agents and seed do not)."""
    name = path.name.split(".")[0]
    if is_sessions(path):
        sessions, block_size = load_sessions(path)
        return closed_loop(name, block_size, every_other(sessions, half), layout)
    lines = read_mooncake(path)
    middle = len(lines) // 2
    chosen = {Half.ALL: lines, Half.TUNE: lines[:middle], Half.REPORT: lines[middle:]}[half]
    return open_loop(name, chosen[: layout.requests], rate_scale=layout.rate_scale)


def load_sessions(path: Path) -> tuple[list[Session], int]:
    """All sessions of a trace, and its block size."""
    heads = Heads()
    raw = list(read_sessions(path))
    return [session_of(one, heads) for one in raw], raw[0]["block_size"]


def every_other(sessions: Sequence[Session], half: Half) -> Sequence[Session]:
    """The sessions of a half."""
    return {Half.ALL: sessions, Half.TUNE: sessions[::2], Half.REPORT: sessions[1::2]}[half]
