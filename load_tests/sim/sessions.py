"""Claude Code sessions as a closed loop: a turn waits for the last answer and the think time, sub-agents fork and join.

Time between calls is what the trace shows between the end of one (its beginning and its duration) and the beginning of
the next. Where a duration is missing it is taken from the session's other calls, by output tokens. A sub-agent begins
after the main call before it; the first main call after its end waits for it, one that came earlier does not.

The ids of a session are its own, but for the head (tools and system prompt), which sessions with heads of equal sizes
share. Blocks of an answer have the ids that the next request of the thread gives them, if it goes on from there.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from load_tests.sim.work import Run, common_blocks, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

OWN_IDS: Final = 1 << 20  # ids of sessions begin here, those of shared heads below
SECONDS_PER_TOKEN: Final = 0.03  # of a call's output, for sessions without any known duration


@dataclass(slots=True)
class Call:
    """One call of a session. Times count from its start at the trace's own pace; `after` are earlier calls with the
    time between their end and this beginning."""

    begins_s: float
    ends_s: float
    prompt_tokens: int
    output_tokens: int
    runs: tuple[Run, ...]
    after: list[tuple[int, float]] = field(default_factory=list)


@dataclass(slots=True)
class Session:
    """Calls in the order of their beginning. Ids from OWN_IDS on are the session's own, `own_ids` of them."""

    name: str
    calls: list[Call]
    own_ids: int

    @property
    def ends_s(self) -> float:
        """When its last call ends."""
        return max(call.ends_s for call in self.calls)


class Heads:
    """Common ids for heads of equal sizes: a block's id depends on all before it."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, tuple[int, int], int], int] = {}

    def id_of(self, parent: int, sizes: tuple[int, int], place: int) -> int:
        """The id of the block at this place of a head, after that parent (0 for none)."""
        return self._ids.setdefault((parent, sizes, place), len(self._ids) + 1)


def read_sessions(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a trace of sessions."""
    with gzip.open(path, "rt") as lines:
        for line in lines:
            yield json.loads(line)


def session_of(raw: dict[str, Any], heads: Heads) -> Session:
    """One line of the trace."""
    block_size = raw["block_size"]
    names = _Names(heads, block_size)
    pace = _pace(raw)
    main = [one for one in raw["requests"] if one.get("type") != "subagent"]
    calls = _thread(main, 0.0, pace)
    runs = names.thread(main, raw)
    threads = [list(range(len(calls)))]
    for agent in raw["requests"]:
        if agent.get("type") == "subagent" and agent["requests"]:
            threads.append(list(range(len(calls), len(calls) + len(agent["requests"]))))
            calls += _thread(agent["requests"], agent["t"], pace)
            runs += names.thread(agent["requests"], agent)
    for call, known in zip(calls, runs, strict=True):
        call.runs = names.filled(known, (call.prompt_tokens + call.output_tokens - 1) // block_size)
    _fork_and_join(calls, threads)
    return Session(raw["id"], _in_order(calls), names.own_ids)


class _Names:
    """Ids of one session: those of heads are shared, all others its own, answers nobody asked again about included."""

    def __init__(self, heads: Heads, block_size: int) -> None:
        self._heads = heads
        self._block_size = block_size
        self._shared: dict[int, int] = {}
        self._row: dict[int, int] = {}  # id of a shared block → how many from it on have ids in a row
        self.own_ids = 0

    def thread(self, requests: Sequence[dict[str, Any]], owner: dict[str, Any]) -> list[list[Run]]:
        """The known blocks of each request: its prompt, and as much of its answer as the next one repeats."""
        sizes = (owner["tool_tokens"], owner["system_tokens"])
        raw = [[Run(*run) for run in one["h"]] for one in requests]
        self._share(raw[0], sizes, sum(sizes) // self._block_size)
        mine = [self._renamed(runs) for runs in raw]
        found = []
        for at, runs in enumerate(mine):
            after = mine[at + 1] if at + 1 < len(mine) else []
            found.append(after if common_blocks(runs, after) == total(runs) else runs)
        return found

    def filled(self, known: Sequence[Run], blocks: int) -> tuple[Run, ...]:
        """Exactly so many blocks: what is known of them, then new ids."""
        found, left = [], blocks
        for run in known:
            if left <= 0:
                break
            found.append(Run(run.first, min(run.blocks, left)))
            left -= run.blocks
        if left > 0:
            found.append(Run(OWN_IDS + self.own_ids, left))
            self.own_ids += left
        return tuple(found)

    def _share(self, first: Sequence[Run], sizes: tuple[int, int], blocks: int) -> None:
        parent, place = 0, 0
        for run in first:
            for block in range(run.first, run.first + run.blocks):
                if place == blocks:
                    break
                parent = self._shared.setdefault(block, self._heads.id_of(parent, sizes, place))
                place += 1
        for block in sorted(self._shared, reverse=True):
            follows = self._shared.get(block + 1) == self._shared[block] + 1
            self._row[block] = 1 + self._row[block + 1] if follows else 1

    def _renamed(self, runs: Sequence[Run]) -> list[Run]:
        found: list[Run] = []
        for first, count in runs:
            at, end = first, first + count
            while at < end and at in self._shared:
                row = min(self._row[at], end - at)
                found.append(Run(self._shared[at], row))
                at += row
            if at < end:
                found.append(Run(OWN_IDS + at, end - at))
                self.own_ids = max(self.own_ids, end)
        return found


def _thread(requests: Sequence[dict[str, Any]], start_s: float, seconds_per_token: float) -> list[Call]:
    """Calls that follow each other, `after` holding places in this thread."""
    calls: list[Call] = []
    for one in requests:
        begins_s = start_s + one["t"]
        known_s = one["api"] if one["api"] is not None else seconds_per_token * max(one["o"], 1)
        calls.append(Call(begins_s, begins_s + known_s, one["i"], max(one["o"], 1), ()))
    for call, following in pairwise(calls):
        call.ends_s = min(call.ends_s, max(following.begins_s, call.begins_s))
    return calls


def _pace(raw: dict[str, Any]) -> float:
    known = [one["api"] / one["o"] for one in raw["requests"] if one.get("api") is not None and one["o"]]
    return median(known) if known else SECONDS_PER_TOKEN


def _fork_and_join(calls: Sequence[Call], threads: Sequence[Sequence[int]]) -> None:
    for thread in threads:
        for before, at in pairwise(thread):
            _wait(calls, at, before)
    main = threads[0]
    for thread in threads[1:]:
        first, last = thread[0], thread[-1]
        earlier = [at for at in main if calls[at].begins_s <= calls[first].begins_s]
        if earlier:
            _wait(calls, first, earlier[-1])
        later = [at for at in main if calls[at].begins_s >= calls[last].ends_s]
        if later:
            _wait(calls, later[0], last)


def _wait(calls: Sequence[Call], at: int, before: int) -> None:
    calls[at].after.append((before, max(0.0, calls[at].begins_s - calls[before].ends_s)))


def _in_order(calls: Sequence[Call]) -> list[Call]:
    order = sorted(range(len(calls)), key=lambda at: (calls[at].begins_s, at))
    place = {at: new for new, at in enumerate(order)}
    for call in calls:
        call.after = [(place[before], gap_s) for before, gap_s in call.after]
    return [calls[at] for at in order]
