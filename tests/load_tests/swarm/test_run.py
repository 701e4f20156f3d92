"""Whole runs over real sockets, against an endpoint that does well and one that does not."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from load_tests.swarm.compare import Side, columns_of, compare, phases_of
from load_tests.swarm.endpoint import Call, Endpoint
from load_tests.swarm.ledger import read_ledger
from load_tests.swarm.progress import line, panel
from load_tests.swarm.results import write_results
from load_tests.swarm.run import Result, Target, run_swarm
from load_tests.swarm.settings import Settings, make_settings
from load_tests.swarm.side_by_side import main, side_of, write
from load_tests.swarm.summary import read_summary
from load_tests.swarm.tally import Snapshot
from router.errors import InvalidRequest
from tests.load_tests.swarm.fake_endpoint import FakeEndpoint, faking

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from load_tests.swarm.endpoint import Answer
    from tests.load_tests.swarm.fake_endpoint import Deed

SMALL: dict[str, Any] = {
    "sessions": 6,
    "agents": 3,
    "turns": 3,
    "heads": 1,
    "tools": 1,
    "system_chars": 400,
    "think_s": 0.0,
    "ramp_s": 0.0,
    "warmup_s": 0.0,
    "cancel_share": 0.0,
    "salt": "test",
}


def played(settings: Settings, choose: Callable[[int], Deed] = lambda _: "answer") -> tuple[Result, FakeEndpoint]:
    async def run() -> tuple[Result, FakeEndpoint]:
        async with faking(choose) as (url, fake):
            return await run_swarm(settings, Target(url, "secret")), fake

    return asyncio.run(run())


@pytest.mark.parametrize("api", ["messages", "chat"])
def test_a_whole_run_has_an_entry_for_every_request_the_endpoint_saw(api: str) -> None:
    """Usage, replica and outcome are the endpoint's; its first model is asked for."""
    result, fake = played(make_settings(**SMALL, api=api))
    assert result.summary.requests == len(fake.bodies) == len(result.entries) > 6
    assert result.summary.outcomes["completed"] == len(result.entries)
    assert {(entry.prompt_tokens, entry.cached_tokens, entry.output_tokens) for entry in result.entries} == {
        (100, 90, 2)
    }
    assert [one.replica for one in result.summary.replicas] == ["r1"]
    assert {json.loads(body)["model"] for body in fake.bodies} == {"first"}
    assert {headers["authorization"] for headers in fake.headers} == {"Bearer secret"}
    for entry in result.entries:
        entry.check_integrity()


def test_cuts_by_the_client_are_cancellations_and_no_errors() -> None:
    """Before the first token and in the middle; the endpoint sees the client leave."""
    settings = make_settings(**SMALL | {"cancel_share": 1.0, "answer_tokens": 8})
    result, fake = played(settings, lambda number: "trickle" if number % 2 else "late")
    assert result.summary.outcomes["cancelled"] == result.summary.requests > 6
    assert result.summary.errors == {}
    assert {entry.first_token_s is None for entry in result.entries} == {True, False}
    assert fake.hung_up > 0


def test_every_fault_has_its_class() -> None:
    deeds: list[Deed] = ["refuse", "hang_up", "break", "error", "hang"]
    settings = make_settings(**SMALL | {"sessions": 5, "agents": 5, "turns": 1, "request_limit_s": 0.5})
    result, _ = played(settings, lambda number: deeds[number % 5])
    assert result.summary.errors == {
        "http_529": 1,
        "disconnected": 1,
        "truncated": 1,
        "stream_error": 1,
        "timeout": 1,
    }
    assert result.summary.outcomes["failed"] == 3
    assert result.summary.outcomes["refused"] == result.summary.outcomes["timed_out"] == 1


def test_an_endpoint_that_is_not_there_is_named_before_anything_is_sent() -> None:
    with pytest.raises(InvalidRequest, match="--model"):
        asyncio.run(run_swarm(make_settings(**SMALL), Target("http://127.0.0.1:9")))


def test_no_connection_is_an_error_of_each_request() -> None:
    settings = make_settings(**SMALL | {"sessions": 2, "turns": 1, "model": "m"})
    result = asyncio.run(run_swarm(settings, Target("http://127.0.0.1:9")))
    assert result.summary.errors == {"connect": 2}


def test_results_are_written_as_data_that_reads_back(tmp_path: Path) -> None:
    result, _ = played(make_settings(**SMALL))
    paths = {path.suffix: path for path in write_results(result, tmp_path / "out")}
    assert read_summary(paths[".json"]) == result.summary
    assert list(read_ledger(paths[".jsonl"])) == result.entries
    assert "secret" not in "".join(path.read_text() for path in paths.values())


def test_a_cut_before_the_first_token_of_an_answer_that_came_at_once_is_completed() -> None:
    async def run() -> Answer:
        async with faking() as (url, _), Endpoint(url, api="messages", key="", replica_header="x") as endpoint:
            return await endpoint.ask(Call(b"{}", {}, 0, 5.0))

    assert asyncio.run(run()).outcome == "completed"


class TestSideBySide:
    """The same swarm against several endpoints."""

    SIDES = (Side("one", "http://a", "messages", "m"), Side("other", "http://b", "chat", "m"))

    def test_phases_are_in_turn_and_every_round_has_each_once(self) -> None:
        phases = phases_of(self.SIDES, ["none", "changing"], rounds=5, seed=3)
        for number in range(5):
            labels = [phase.label for phase in phases[4 * number : 4 * number + 4]]
            assert sorted(labels) == sorted(columns_of(phases))
        assert len({tuple(phase.label for phase in phases[at : at + 4]) for at in range(0, 20, 4)}) > 1

    def test_the_sides_of_a_round_get_the_same_sessions_in_texts_of_their_own(self) -> None:
        base = Settings(salt="s", seed=7)
        made = [phase.settings(base) for phase in phases_of(self.SIDES, ["none", "fixed"], rounds=2, seed=7)]
        assert len({one.salt for one in made}) == len(made)
        assert len({len(one.salt) for one in made}) == 1
        assert sorted(one.seed for one in made) == [7] * 4 + [8] * 4

    def test_columns_hold_all_phases_of_a_side(self, tmp_path: Path) -> None:
        async def run() -> dict[str, Result]:
            async with faking() as (first, _), faking() as (second, _):
                sides = [Side("one", first, "messages"), Side("other", second, "chat", "m")]
                phases = phases_of(sides, ["changing"], rounds=2, seed=0)
                return await compare(phases, make_settings(**SMALL | {"sessions": 2}), console=Console(quiet=True))

        results = asyncio.run(run())
        one, other = results["one-changing"].summary, results["other-changing"].summary
        assert one.requests == other.requests == sum(second.requests for second in one.series)
        assert (one.api, other.api) == ("messages", "chat")
        assert {entry.session for entry in results["one-changing"].entries} == {0, 1}
        path = write(results, tmp_path)
        assert [column["label"] for column in json.loads(path.read_text())["columns"]] == list(results)
        assert {name.stem for name in tmp_path.glob("*.jsonl")} == set(results)

    def test_a_side_is_told_in_one_word(self) -> None:
        assert side_of("k=http://h:1,messages") == Side("k", "http://h:1", "messages", "")
        assert side_of("k=http://h:1,chat,org/m") == Side("k", "http://h:1", "chat", "org/m")
        for wrong in ("k", "k=http://h:1", "k=http://h:1,soap", "=http://h,chat", "a/b=http://h,chat", "k=u,chat,m,x"):
            with pytest.raises(InvalidRequest, match="LABEL=URL"):
                side_of(wrong)

    def test_what_is_asked_for_wrongly_is_told_and_not_played(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--side", "k=http://127.0.0.1:9,messages", "--set", "think_s"]) == 2
        assert "name=value" in capsys.readouterr().err

    def test_more_phases_than_a_day_has_are_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="phases"):
            phases_of(self.SIDES, ["none"], rounds=501, seed=0)


def test_progress_tells_errors_and_phases() -> None:
    now = Snapshot(12.0, 3, 40, {"completed": 38, "refused": 2}, {"http_529": 2}, 4.0, 100.0, 900.0, 0.9, 0.95)
    assert "2 errors" in line(now)
    shown = Console(width=100)
    with shown.capture() as captured:
        shown.print(panel(now, Settings(warmup_s=20.0)))
    assert "warm-up" in captured.get()
    assert "http_529 2" in captured.get()
