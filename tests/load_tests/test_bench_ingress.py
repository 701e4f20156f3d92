"""The ingress bench without a cluster: its bodies, its client, its arithmetic. Nothing here judges how fast."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from load_tests.bench.ingress import GROUPS, PER_TOKEN_STREAMS, WARM, Ingress, Measured, Plan, Tally
from load_tests.bench.ingress_bodies import CACHED, Head, Library, Scale, Talk, short_body
from load_tests.bench.ingress_client import Address, Caller, Seen, StreamFailed
from load_tests.bench.ingress_dynamo import dynamo
from load_tests.bench.ingress_sides import Processes, Side, make_model, named
from load_tests.bench.ingress_streams import at, growth_ms, lags_ms, steady
from load_tests.bench.ingress_warm import Cost, Stretch, new_talks, warm_turns
from load_tests.bench.processes import cpu_s, resident_mb, spent_s
from load_tests.bench.report import as_data, as_text
from load_tests.bench.stages import BUDGETS_MS, in_engine_ms, prompt_ms, to_worker_ms, with_budgets
from load_tests.peers.environment import PeerMissing
from router.errors import InvalidRequest
from workers.journal import Journey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

Result = TypeVar("Result")
HEAD = Head.make(tools=2)
DELTA = b'event: content_block_delta\ndata: {"delta": {"type": "text_delta", "text": "x"}}\n\n'


def talk(seed: int = 1) -> Talk:
    return Talk(HEAD, Library(), seed=seed)


def body(one: Talk, turn: int) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(one.body(turn, model="m", max_tokens=5))
    return made


def seen(request_id: str = "a", *, sent: float = 0.0, first: float = 1.0, ended: float = 2.0, deltas: int = 11) -> Seen:
    return Seen(request_id, sent, first, ended, deltas, {})


class TestBodies:
    """What is sent has everything that makes an agent's requests hard."""

    def test_a_conversation_grows_by_a_call_and_its_result(self) -> None:
        """All messages before stay as they were, but for the moving mark."""
        one = talk()
        before, after = body(one, 3)["messages"], body(one, 4)["messages"]
        assert len(after) == len(before) + 2 == 9
        assert after[: len(before) - 1] == before[:-1]
        *_, last = before[-1]["content"]
        assert after[len(before) - 1]["content"][-1] == {key: last[key] for key in last if key != "cache_control"}
        call, result = after[-2]["content"][-1], after[-1]["content"][0]
        assert (call["type"], result["type"]) == ("tool_use", "tool_result")
        assert call["id"] == result["tool_use_id"]

    def test_only_the_last_message_has_a_mark(self) -> None:
        """It says up to where to cache, and moves with every turn."""
        *others, last = body(talk(), 5)["messages"]
        assert last["content"][-1]["cache_control"] == CACHED
        assert "cache_control" not in json.dumps(others)

    def test_every_request_has_its_own_attribution_header(self) -> None:
        """All else of the system text stays."""
        one = talk()
        systems = [body(one, 2)["system"] for _ in range(2)]
        headers = [system.pop(0)["text"] for system in systems]
        assert headers[0] != headers[1]
        assert all(header.startswith("x-anthropic-billing-header: cc_version=") for header in headers)
        assert systems[0] == systems[1]

    def test_the_head_is_as_large_as_a_coding_agents(self) -> None:
        """13 KB of system text and 20 tools of about 48 KB."""
        head = Head.make()
        assert len(head.system) == pytest.approx(13_000, rel=0.05)
        assert len(head.tools) == 20
        assert len(json.dumps(head.tools)) == pytest.approx(48_000, rel=0.1)

    def test_seeds_make_conversations(self) -> None:
        """The same one twice, and another one, which shares the head only."""
        bodies = [body(talk(seed), 2) for seed in (1, 1, 2)]
        assert bodies[0] == bodies[1]
        assert bodies[0]["messages"] != bodies[2]["messages"]
        assert bodies[0]["tools"] == bodies[2]["tools"]

    def test_short_prompts_ask_for_long_answers(self) -> None:
        """Of any number of tokens."""
        made = json.loads(short_body(1, model="m", max_tokens=200))
        assert (made["max_tokens"], made["stream"], len(made["messages"])) == (200, True, 1)


def test_the_scale_says_how_many_exchanges_are_a_number_of_tokens() -> None:
    """A straight line through two counts; never less than one exchange."""
    scale = Scale.between((1, 1_700), (21, 15_700))
    assert scale == Scale(1_000.0, 700.0)
    assert scale.exchanges(52_000) == 73
    assert scale.exchanges(10) == 1


class TestClient:
    """A stream is read to its end however it is cut."""

    @pytest.mark.parametrize("size", [1, 7, 4096])
    def test_events_are_counted_once_however_they_are_cut(self, size: int) -> None:
        """The head's fields are found too."""
        result = asyncio.run(_answered(_response(3), size))
        assert (result.deltas, result.request_id, result.stages_ms) == (3, "0abc", {"parse": 0.5, "ttft": 12.0})
        assert result.sent_s <= result.first_s <= result.ended_s
        assert result.ttft_ms >= 0

    def test_a_connection_is_used_again(self) -> None:
        """For the next turn."""
        assert asyncio.run(_served(_ask_twice, _response(2), 4096)) == [2, 2]

    @pytest.mark.parametrize(
        "answer",
        [
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n40\r\n" + DELTA + b"event: error\n\r\n0\r\n\r\n",
            b'HTTP/1.1 529 Overloaded\r\ncontent-length: 17\r\n\r\n{"type": "error"}',
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n14\r\nevent: error\r\n0\r\n\r\n",
        ],
    )
    def test_a_failure_ends_the_run(self, answer: bytes) -> None:
        """With the server's words."""
        with pytest.raises(StreamFailed, match="error"):
            asyncio.run(_answered(answer, 4096))

    def test_new_and_old_conversations_are_told_apart(self) -> None:
        """First bodies of growing conversations are not measured, those of new ones are."""
        assert asyncio.run(_served(_drive, _response(1), 4096)) == (4, 2)


async def _ask_twice(address: Address) -> list[int]:
    caller = Caller(address, quick_ack=True)
    try:
        return [(await caller.ask(b"{}")).deltas for _ in range(2)]
    finally:
        caller.close()


async def _drive(address: Address) -> tuple[int, int]:
    side = Side("us", address, lambda: Processes((), ()))
    warm = await warm_turns(side, [[b"{}"] * 3] * 2, at_once=1, quick_ack=False)
    new = await new_talks(side, [b"{}"] * 2, at_once=2)
    return len(warm.seen), len(new.seen)


async def _answered(answer: bytes, size: int) -> Seen:
    async def ask(address: Address) -> Seen:
        caller = Caller(address, quick_ack=True)
        try:
            return await caller.ask(b"{}")
        finally:
            caller.close()

    return await _served(ask, answer, size)


async def _served(use: Callable[[Address], Awaitable[Result]], answer: bytes, size: int) -> Result:
    """What `use` makes of a server that says `answer` in pieces of `size` to every request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n{}"):
                for start in range(0, len(answer), size):
                    writer.write(answer[start : start + size])
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await use(Address(*server.sockets[0].getsockname()[:2]))


def _response(deltas: int) -> bytes:
    start = b'event: message_start\ndata: {"message": {"id":"msg_0abc"}}\n\n'
    events = start + DELTA * deltas + b"event: message_stop\ndata: {}\n\n"
    head = b"HTTP/1.1 200 OK\r\nServer-Timing: parse;dur=0.500, ttft;dur=12.000\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n" % len(events) + events + b"\r\n0\r\n\r\n"


class TestStreams:
    """CPU and tokens are counted while all streams ran, and only then."""

    def test_tokens_and_cpu_count_between_the_last_start_and_the_first_end(self) -> None:
        """Two streams of 1 token per 0.1 s, one a second later: one second is common."""
        streams = [seen(first=1.0, ended=3.0), seen(first=2.0, ended=4.0)]
        samples = [(1.0, 0.0, 10.0), (2.5, 3.0, 13.0), (5.0, 3.0, 18.0)]
        run = steady(streams, samples, max_tokens=21)
        assert [run.window_s, run.tokens, run.frontend_s, run.workers_s] == pytest.approx([1.0, 20.0, 1.0, 2.0])
        assert run.deltas == pytest.approx(10.0)
        assert growth_ms(run) is None

    def test_streams_that_never_ran_together_are_no_measure(self) -> None:
        """Longer ones are needed."""
        with pytest.raises(ValueError, match="too short"):
            steady([seen(first=1.0, ended=2.0), seen(first=3.0, ended=4.0)], [(0.0, 0.0, 0.0)], max_tokens=5)

    def test_lag_is_from_the_engine_to_the_client(self) -> None:
        """By journal; requests that no engine wrote down have none."""
        streams = [seen("a", first=1.002, ended=2.030), seen("b")]
        journeys = [Journey("req_a", 0.5, 1.0, 2.0, 5), Journey("req_c", 0.5), Journey("req_b", 0.5)]
        ((first, last),) = lags_ms(streams, journeys)
        assert (first, last) == pytest.approx((2.0, 30.0))
        run = steady(streams, [(0.0, 0.0, 0.0)], max_tokens=5, journeys=journeys)
        assert growth_ms(run) == pytest.approx(28.0)

    def test_between_samples_the_line_is_straight(self) -> None:
        """Outside of them the nearest holds."""
        samples = [(1.0, 10.0), (3.0, 20.0)]
        assert [at(samples, when) for when in (0.0, 2.0, 9.0)] == [10.0, 15.0, 20.0]


class TestRows:
    """From requests to rows."""

    def test_times_are_percentiles_over_all_rounds_and_values_medians_of_rounds(self) -> None:
        """A value of every round, a time of every request."""
        tally = Tally()
        for cpu, times in ((0.2, (1.0, 2.0)), (0.4, (3.0, 9.0)), (0.9, (4.0, 5.0))):
            tally.stretch("52k_c1", Stretch([seen(first=one) for one in times], Cost(4.0, cpu, 0.02, 0.0)))
        rows = tally.rows()
        assert rows["ttft_52k_c1_p50_ms"] == [3000.0]
        assert rows["ttft_52k_c1_p99_ms"] == [9000.0]
        assert rows["frontend_cpu_52k_c1_ms"] == [pytest.approx(200.0)]
        assert rows["52k_c1_requests_per_s"] == [0.5]
        assert "rest_cpu_52k_c1_ms" not in rows

    def test_rows_of_both_sides_stand_beside_each_other(self) -> None:
        """Those the peer has not, and those it has nothing in, have no ratio."""
        ours = {"ttft_52k_c1_p50_ms": [2.0], "live100_rss_growth_mb": [5.0], "chunks_per_s": [10.0]}
        data = as_data(ours, {"ttft_52k_c1_p50_ms": [8.0], "live100_rss_growth_mb": [0.0]}, {})
        assert [(row["unit"], row["ratio"]) for row in data["rows"]] == [("ms", 0.25), ("MiB", None), ("1/s", None)]

    def test_one_round_is_a_smoke_test(self) -> None:
        """Fewer conversations and streams; all groups unless some are chosen."""
        assert Plan.of(rounds=5, turns=12, groups=[]) == Plan()
        small = Plan.of(rounds=1, turns=2, groups=["new"])
        assert (small.live, small.groups) == (8, ("new",))
        assert Plan().groups == GROUPS
        assert PER_TOKEN_STREAMS in Plan().streams

    def test_the_rows_that_were_asked_for_come_first(self) -> None:
        """With what a token costs at a slow flush, which is a run of its own beside the same peer."""
        fast = Measured(
            {"chunks_per_s": [3.0], "a_ms": [1.0], "cpu_per_token_us": [50.0]}, {"cpu_per_token_us": [40.0]}
        )
        slow = Measured({"a_ms": [9.0], "cpu_per_token_us": [20.0]}, {"cpu_per_token_us": [50.0]})
        rows = fast.beside(slow).data({})["rows"]
        assert [(row["name"], row["value"], row["ratio"]) for row in rows] == [
            ("cpu_per_token_us", 50.0, 1.25),
            ("cpu_per_token_flush100_us", 20.0, 0.4),
            ("chunks_per_s", 3.0, None),
            ("a_ms", 1.0, None),
        ]
        assert Plan().has_slow_flush
        assert not Plan.of(rounds=1, turns=2, groups=[]).has_slow_flush
        assert Plan().only_tokens().groups == ("streams",)
        assert Plan().only_tokens().streams == (PER_TOKEN_STREAMS,)

    def test_both_sides_are_asked_in_every_round(self) -> None:
        """In any order; a scenario may end before the last round."""
        sides = [Side(name, Address("127.0.0.1", 1), lambda: Processes((), ())) for name in ("us", "them")]
        run = Ingress(sides, Plan(rounds=3))
        asked: list[str] = []
        run._rounds("x", lambda side: asked.append(side.name), most=2)
        assert [sorted(asked[:2]), sorted(asked[2:])] == [["them", "us"]] * 2
        assert run.tallies.keys() == {"us", "them"}


class TestStages:
    """Each step beside its budget."""

    def test_rows_with_a_budget_come_first(self) -> None:
        """In the order of the budgets; the others say none."""
        samples = {"stage_parse_ms": [1.0], **{name: [1.0] for name in reversed(BUDGETS_MS)}}
        data = with_budgets(as_data(samples, {}, {}))
        rows = data["rows"]
        assert as_text(data).count("budget") == len(BUDGETS_MS)
        assert [(row["name"], row["budget"]) for row in rows] == [*BUDGETS_MS.items(), ("stage_parse_ms", None)]

    def test_the_way_to_the_worker_is_from_the_first_byte_to_the_engine(self) -> None:
        """By request; what others sent is left out."""
        journeys = [Journey("req_a", 10.003), Journey("req_z", 1.0)]
        assert to_worker_ms([seen("a", sent=10.0)], journeys) == [pytest.approx(3.0)]

    def test_what_the_engine_takes_is_told_apart(self) -> None:
        """Up to its first token; of a request that got none there is nothing to tell."""
        journeys = [Journey("req_a", 10.0, 10.002), Journey("req_b", 10.0), Journey("req_z", 1.0, 2.0)]
        assert in_engine_ms([seen("a"), seen("b")], journeys) == [pytest.approx(2.0)]

    def test_the_prompt_is_what_stands_between_parsing_and_routing(self) -> None:
        """With the hashes of its blocks."""
        stages = {"parse": 9.0, "canonical": 0.1, "template": 0.2, "tokenize": 0.3, "hash": 0.4, "route": 9.0}
        assert prompt_ms(stages | {"queue": 9.0, "ttft": 9.0}) == pytest.approx(1.0)


def test_a_process_that_came_in_between_counts_from_its_start() -> None:
    """A proxy that was replaced, say."""
    assert spent_s({1: 5.0, 2: 7.0}, {1: 6.0, 3: 0.5}) == 1.5


def test_processes_are_read_by_id() -> None:
    """This one has used a CPU and memory."""
    own = int(Path("/proc/self").resolve().name)
    assert cpu_s([own])[own] > 0
    assert resident_mb([own]) > 1
    assert named([(1, "ray::ServeReplica:kvist:Ingress"), (2, "haproxy -db"), (3, "raylet")], "Ingress", "haproxy") == (
        1,
        2,
    )


def test_the_models_template_knows_tools(tmp_path: Path) -> None:
    """Whatever the tokenizer's own does."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    model = make_model(source, tmp_path / "model")
    assert {file.name for file in model.iterdir()} == {"tokenizer.json", "chat_template.jinja"}
    assert "tool" in (model / "chat_template.jinja").read_text()


def test_a_missing_peer_is_said_before_anything_is_started(tmp_path: Path) -> None:
    """In one sentence that says what to do."""
    with pytest.raises(PeerMissing, match="no environment of dynamo"), dynamo(tmp_path, tmp_path, lab=tmp_path):
        pass
    file = tmp_path / "rows.json"
    options = ["--peer", "dynamo", "--lab", str(tmp_path), "--json", str(file)]
    done = CliRunner().invoke(app, ["bench", "ingress", *options])
    assert isinstance(done.exception, PeerMissing)
    assert not file.exists()


def test_options_of_the_cluster_are_keys_and_values(tmp_path: Path) -> None:
    """What the config does not know is refused, in one sentence, before anything runs."""
    file = str(tmp_path / "rows.json")
    for option, words in (("data_plane", "say key=value"), ("colour=red", "colour: unknown key")):
        done = CliRunner().invoke(app, ["bench", "ingress", "--json", file, "--set", option])
        assert isinstance(done.exception, InvalidRequest)
        assert words in str(done.exception)


def test_names_of_scenarios_are_names_of_rows() -> None:
    """As they are asked for: 52k and 208k tokens, one and sixteen at a time."""
    assert {"52k_c1", "52k_c16", "208k_c1"} <= {one.name for one in WARM}
