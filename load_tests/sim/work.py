"""A workload: requests, what each waits for, and the blocks of its prompt and answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Run(NamedTuple):
    """So many block ids that follow each other, from `first` on."""

    first: int
    blocks: int


class After(NamedTuple):
    """Not before `gap_s` after that earlier request has ended."""

    request: int
    gap_s: float


class SimRequest(NamedTuple):
    """One request. It comes at `at` seconds, or when the last of `after` allows. `runs` are the blocks that its prompt
    and its answer but the last token fill; equal ids mean an equal prefix up to and including that block. `seen_at` and
    `left_at` say when the trace saw it begin and end, in seconds of the trace's own pace."""

    session: str
    turn: int
    prompt_tokens: int
    output_tokens: int
    runs: tuple[Run, ...]
    at: float = 0.0
    after: tuple[After, ...] = ()
    seen_at: float = 0.0
    left_at: float = 0.0

    def hashes(self) -> list[int]:
        """All block ids. O(blocks)."""
        return hashes_of(self.runs)

    def packed(self) -> NDArray[np.uint64]:
        """The same as an array. O(blocks)."""
        rows = [np.arange(first, first + blocks, dtype=np.uint64) for first, blocks in self.runs]
        return np.concatenate(rows) if rows else np.empty(0, np.uint64)


class Workload(NamedTuple):
    """Requests in the order in which the trace saw them; `after` names earlier ones by their place."""

    name: str
    block_size: int
    requests: Sequence[SimRequest]

    def check_integrity(self) -> None:
        """Raise `InvalidRequest` for a request that waits for a later one or lacks blocks. O(runs)."""
        for index, one in enumerate(self.requests):
            if any(not 0 <= dep.request < index for dep in one.after):
                raise InvalidRequest(f"request {index} of {self.name} waits for one that is not before it")
            if min(one.prompt_tokens, one.output_tokens) < 1:
                raise InvalidRequest(f"request {index} of {self.name} has no tokens")
            filled = (one.prompt_tokens + one.output_tokens - 1) // self.block_size
            if sum(run.blocks for run in one.runs) != filled:
                raise InvalidRequest(f"request {index} of {self.name} does not name its {filled} blocks")


def hashes_of(runs: Sequence[Run]) -> list[int]:
    """The ids, in order."""
    found: list[int] = []
    for first, count in runs:
        found.extend(range(first, first + count))
    return found


def runs_of(hashes: Sequence[int]) -> tuple[Run, ...]:
    """The same ids as runs."""
    found: list[Run] = []
    first, count = 0, 0
    for block in hashes:
        if count and block == first + count:
            count += 1
            continue
        if count:
            found.append(Run(first, count))
        first, count = block, 1
    if count:
        found.append(Run(first, count))
    return tuple(found)


def cut(runs: Sequence[Run], blocks: int) -> tuple[Run, ...]:
    """The first so many blocks."""
    found: list[Run] = []
    for run in runs:
        if blocks <= 0:
            break
        found.append(Run(run.first, min(run.blocks, blocks)))
        blocks -= run.blocks
    return tuple(found)


def total(runs: Sequence[Run]) -> int:
    """How many blocks they are."""
    return sum([run.blocks for run in runs])


def common_blocks(left: Sequence[Run], right: Sequence[Run]) -> int:
    """Length of the longest common prefix, in blocks. O(runs)."""
    same, mine, others = 0, list(left), list(right)
    mine.reverse()
    others.reverse()
    while mine and others:
        (a, many), (b, more) = mine.pop(), others.pop()
        step = min(many, more)
        if a != b:
            break
        same += step
        if many > step:
            mine.append(Run(a + step, many - step))
        if more > step:
            others.append(Run(b + step, more - step))
    return same
