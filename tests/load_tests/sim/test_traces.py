"""Traces as workloads: whose blocks are whose, who waits for whom, how sessions are laid out in time."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from load_tests.sim.closed_loop import Layout, closed_loop
from load_tests.sim.mooncake import open_loop
from load_tests.sim.sessions import OWN_IDS, Heads, session_of
from load_tests.sim.traces import Half, every_other, workload_of
from load_tests.sim.work import After, Run, common_blocks, cut, runs_of
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path


def call(t: float, tokens: int, runs: list[list[int]], *, o: int = 64, api: float | None = 2.0) -> dict[str, Any]:
    return {"t": t, "i": tokens, "o": o, "api": api, "think": 0.0, "stop": "", "h": runs}


def session(name: str, *requests: dict[str, Any], tools: int = 64, system: int = 64) -> dict[str, Any]:
    return {"id": name, "tool_tokens": tools, "system_tokens": system, "block_size": 64, "requests": list(requests)}


def agent(t: float, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"type": "subagent", "t": t, "tool_tokens": 64, "system_tokens": 0, "requests": list(requests)}


def test_an_answer_has_the_ids_that_the_next_turn_gives_it() -> None:
    raw = session("s", call(0, 640, [[1, 10]], o=129), call(9, 896, [[1, 14]]))
    first, second = session_of(raw, Heads()).calls
    assert common_blocks(first.runs, second.runs) == 12  # ten of the prompt, two of the answer


def test_an_answer_that_nobody_repeats_has_ids_of_its_own() -> None:
    raw = session("s", call(0, 640, [[1, 10]], o=129), call(9, 896, [[1, 9], [50, 5]]))
    found = session_of(raw, Heads())
    assert common_blocks(found.calls[0].runs, found.calls[1].runs) == 9
    ids = [run.first + at for one in found.calls for run in one.runs for at in range(run.blocks)]
    assert len(set(ids)) == 9 + (1 + 2) + (5 + 0)
    assert max(ids) == OWN_IDS + found.own_ids - 1


def test_sessions_share_a_head_of_equal_sizes_and_nothing_else() -> None:
    heads = Heads()
    same = [session_of(session(name, call(0, 640, [[1, 10]])), heads).calls[0].runs for name in "ab"]
    other = session_of(session("c", call(0, 640, [[1, 10]]), tools=128), heads).calls[0].runs
    assert same[0][0] == same[1][0] == Run(1, 2)
    assert common_blocks(same[0], other) == 0


def test_a_block_after_another_head_is_another_block() -> None:
    """Equal ids must mean an equal prefix, also where two heads of one session begin alike."""
    heads = Heads()
    raw = session("s", call(0, 640, [[1, 10]]), agent(5, call(0, 256, [[1, 1], [20, 3]])), tools=128)
    session_of(raw, heads)
    forked = session_of(raw, heads).calls[1].runs
    plain = session_of(session("t", call(0, 256, [[1, 4]]), tools=64, system=0), heads).calls[0].runs
    assert common_blocks(forked, plain) == 0


def test_think_time_is_counted_from_the_last_calls_end() -> None:
    raw = session("s", call(0, 640, [[1, 10]], api=2.0), call(10, 704, [[1, 11]], api=None), call(20, 768, [[1, 12]]))
    calls = session_of(raw, Heads()).calls
    assert calls[1].after == [(0, 8.0)]
    assert calls[2].after == [(1, 8.0)]  # as long as the session's other answers of 64 tokens


def test_a_sub_agent_forks_from_the_call_before_and_the_first_call_after_its_end_joins_it() -> None:
    work = agent(3, call(0, 128, [[90, 2]]), call(4, 192, [[90, 3]], api=3.0))
    raw = session("s", call(0, 640, [[1, 10]]), work, call(5, 704, [[1, 11]]), call(30, 768, [[1, 12]]))
    calls = session_of(raw, Heads()).calls
    assert [one.begins_s for one in calls] == [0, 3, 5, 7, 30]
    assert [one.after for one in calls] == [[], [(0, 1.0)], [(0, 3.0)], [(1, 2.0)], [(2, 23.0), (3, 20.0)]]


def two_sessions() -> list[Any]:
    heads = Heads()
    raw = [session(name, call(0, 640, [[1, 10]]), call(10, 704, [[1, 11]])) for name in "ab"]
    return [session_of(one, heads) for one in raw]


def test_an_agent_takes_the_next_session_when_one_ends() -> None:
    layout = Layout(agents=1, requests=6, rate_scale=2.0, stagger_s=0.0)
    work = closed_loop("t", 64, two_sessions(), layout)
    assert [one.seen_at for one in work.requests] == [0, 10, 12, 22, 24, 34]
    assert [one.after for one in work.requests[:3]] == [(), (After(0, 4.0),), (After(1, 0.0),)]
    assert len({one.session for one in work.requests}) == 3
    assert common_blocks(work.requests[0].runs, work.requests[4].runs) == 2  # come again, it is a new conversation


def test_agents_work_at_once_and_the_run_is_cut_where_the_trace_would_be() -> None:
    work = closed_loop("t", 64, two_sessions(), Layout(agents=2, requests=3, stagger_s=1.0, seed=3))
    first, second, third = work.requests
    assert not first.after
    assert not second.after
    assert 0 <= first.at <= second.at <= 1.0
    assert third.after == (After(0, 8.0),)
    work.check_integrity()


def test_the_seed_decides_the_order() -> None:
    layouts = [Layout(agents=1, requests=4, seed=seed) for seed in range(8)]
    orders = {tuple(one.session for one in closed_loop("t", 64, two_sessions(), layout).requests) for layout in layouts}
    assert len(orders) == 2


def test_timed_requests_come_when_they_came_and_conversations_are_recognised() -> None:
    lines = [
        {"timestamp": 1000, "input_length": 1100, "output_length": 600, "hash_ids": [0, 1, 2]},
        {"timestamp": 2000, "input_length": 600, "output_length": 1, "hash_ids": [0, 9]},
        {"timestamp": 5000, "input_length": 2000, "output_length": 10, "hash_ids": [0, 1, 3, 4]},
    ]
    work = open_loop("m", lines, rate_scale=2.0)
    work.check_integrity()
    assert [one.at for one in work.requests] == [0.0, 0.5, 2.0]
    assert [(one.session, one.turn) for one in work.requests] == [("c0", 0), ("c1", 0), ("c0", 1)]
    assert work.requests[0].runs == (Run(1, 2), Run(4, 1))  # its answer fills the third block as the next turn has it


def test_halves_are_apart() -> None:
    sessions = two_sessions()
    assert every_other(sessions, Half.TUNE) == sessions[:1]
    assert every_other(sessions, Half.REPORT) == sessions[1:]
    assert every_other(sessions, Half.ALL) == sessions


def test_a_file_is_known_by_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl.gz"
    with gzip.open(path, "wt") as out:
        out.write(json.dumps(session("s", call(0, 640, [[1, 10]]))) + "\n")
    assert workload_of(path, Layout(agents=1, requests=2)).block_size == 64
    with gzip.open(path, "wt") as out:
        line = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 9]}
        out.write((json.dumps(line) + "\n") * 4)
    assert len(workload_of(path, Layout(agents=1, requests=9), Half.REPORT).requests) == 2
    path.write_text("no trace")
    with pytest.raises(InvalidRequest, match="no"):
        workload_of(path, Layout(agents=1, requests=1))


def test_runs_are_the_ids_they_stand_for() -> None:
    runs = runs_of([5, 6, 7, 2, 3])
    assert runs == (Run(5, 3), Run(2, 2))
    assert cut(runs, 4) == (Run(5, 3), Run(2, 1))
    assert runs_of([]) == ()
