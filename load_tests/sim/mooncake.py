"""Mooncake's conversation trace as an open loop: requests come at their timestamps, whatever the cluster does.

An answer's blocks have the ids that a later request gives them: the next one that has the whole prompt, and room for
the answer. Such a request is taken as the same conversation's next turn.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, Final

from load_tests.sim.work import SimRequest, Workload, runs_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BLOCK_TOKENS: Final = 512
SECONDS_PER_TOKEN: Final = 0.03  # the trace does not say how long a request took


def read_mooncake(path: Path) -> list[dict[str, Any]]:
    """The lines of the trace, in the order of their timestamps."""
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def open_loop(name: str, lines: Sequence[dict[str, Any]], *, rate_scale: float = 1.0) -> Workload:
    """All requests; time between them is divided by `rate_scale`."""
    start_ms = lines[0]["timestamp"] if lines else 0
    next_turns = _next_turns(lines)
    session_of: dict[int, tuple[str, int]] = {}
    fresh = 1 + max((block for line in lines for block in line["hash_ids"]), default=0)
    requests = []
    for index, line in enumerate(lines):
        session, turn = session_of.pop(index, (f"c{index}", 0))
        prompt, output = line["input_length"], max(line["output_length"], 1)
        filled = (prompt + output - 1) // BLOCK_TOKENS
        following = next_turns[index]
        known = line["hash_ids"][: prompt // BLOCK_TOKENS]
        if following is not None:
            session_of.setdefault(following, (session, turn + 1))
            known = lines[following]["hash_ids"][: lines[following]["input_length"] // BLOCK_TOKENS]
        known = known[:filled]
        new = range(fresh, fresh + filled - len(known))
        fresh += len(new)
        seen_s = (line["timestamp"] - start_ms) / 1000
        requests.append(
            SimRequest(
                session=session,
                turn=turn,
                prompt_tokens=prompt,
                output_tokens=output,
                runs=runs_of([block + 1 for block in (*known, *new)]),
                at=seen_s / rate_scale,
                seen_at=seen_s,
                left_at=seen_s + SECONDS_PER_TOKEN * output,
            )
        )
    return Workload(name, BLOCK_TOKENS, tuple(requests))


def _next_turns(lines: Sequence[dict[str, Any]]) -> list[int | None]:
    """For each request the next one that continues it, if any."""
    found: list[int | None] = [None] * len(lines)
    later: dict[int, int] = {}  # block → the next request that has it
    for index in reversed(range(len(lines))):
        line = lines[index]
        full = line["input_length"] // BLOCK_TOKENS
        if full:
            following = later.get(line["hash_ids"][full - 1])
            if following is not None and _has_room(lines[following], line):
                found[index] = following
        later.update(dict.fromkeys(line["hash_ids"][:full], index))
    return found


def _has_room(following: dict[str, Any], line: dict[str, Any]) -> bool:
    return bool(following["input_length"] >= line["input_length"] + line["output_length"])
