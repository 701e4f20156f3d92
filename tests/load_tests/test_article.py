"""The table of published and measured numbers, and what is measured in virtual time; nothing is started."""

from __future__ import annotations

import http.server
import json
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from load_tests import article
from load_tests.article_live import REQUESTS_PER_ARM, SYSTEM_SENTENCES, TEAM, body, front_line, measure_arms
from load_tests.article_report import PUBLISHED, Arms, Row, Team, as_data, as_text
from load_tests.article_virtual import BLOCK_SIZE, TEAM_CALLS, simulate_arms, simulate_team
from load_tests.peers.running import Running
from load_tests.prose import sentences
from load_tests.sim.calibration import calibration_named
from load_tests.stats import machine
from load_tests.swarm.settings import make_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ABOUT: dict[str, Any] = {"machine": machine(), "versions": {"kvist": "0"}}
MEASURED = Row(
    name="ours",
    origin="measured",
    arms=Arms(stable_ms=20.0, varying_ms=420.0, stripped_ms=21.0, requests_per_arm=15, prompt_tokens=34_000),
    team=Team.of(agents=4, calls=8, prompt_tokens=1_000, cached_tokens=900),
    caveat="of this run",
)


EVENTS = (
    ("message_start", {"type": "message_start", "message": {"usage": {"input_tokens": 77, "output_tokens": 0}}}),
    ("content_block_delta", {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}),
    ("message_stop", {"type": "message_stop"}),
)


class Server:
    """Answers every Messages request with one word, in chunks, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        asked = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for name, data in EVENTS:
                    event = f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Nothing."""

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def streaming() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever)
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


class TestTable:
    """What a person reads."""

    def test_every_column_says_whether_it_was_measured(self) -> None:
        """In its head, and its caveat stands below."""
        text = as_text([PUBLISHED, MEASURED], ABOUT)
        assert text.count("(published)") == text.count("(measured)") == 1
        assert "ours: of this run" in text

    def test_published_numbers_stand_as_they_were_published(self) -> None:
        """With the difference that the article states, and its two caveats."""
        text = as_text([PUBLISHED], ABOUT)
        for number in ("168.0", "912.0", "169.0", "744.0", "97.2%", "11.7 : 1"):
            assert number in text
        assert "session line" in PUBLISHED.caveat
        assert "managed API" in PUBLISHED.caveat

    def test_data_has_the_rows_of_the_table(self) -> None:
        """And what they were measured with."""
        data = as_data([PUBLISHED, MEASURED], ABOUT)
        assert [row["origin"] for row in data["rows"]] == ["published", "measured"]
        assert [row["lost_ms"] for row in data["rows"]] == [744.0, 400.0]
        assert json.loads(json.dumps(data))["machine"] == ABOUT["machine"]

    def test_reads_and_writes_of_a_team_are_tokens_cached_and_computed(self) -> None:
        """900 of 1,000 from the cache are 9 reads for a write."""
        assert (MEASURED.team.hit_rate, MEASURED.team.read_to_write) == (0.9, 9.0)


class TestVirtualTime:
    """On the pace that was made from the published times."""

    def test_a_line_that_stays_costs_what_was_published(self) -> None:
        """Within 1 %: 168, 912 and 169 ms."""
        arms = simulate_arms(calibration_named("b200"))
        assert arms.stable_ms == pytest.approx(168, rel=0.01)
        assert arms.varying_ms == pytest.approx(912, rel=0.01)
        assert arms.stripped_ms == pytest.approx(169, rel=0.01)

    def test_a_team_hits_all_that_an_earlier_call_computed(self) -> None:
        """All but the first head and what each call adds is in the cache, to a block for every call."""
        team = simulate_team(calibration_named("b200"))
        assert team.calls == 4 * TEAM_CALLS
        assert team.hit_rate is not None
        prompts = sum(12_800 + (turn + 1) * 720 for turn in range(TEAM_CALLS)) * 4
        computed = 12_800 * 2 + 4 * TEAM_CALLS * (720 + BLOCK_SIZE)  # each of two replicas reads the head once at most
        assert 1 - computed / prompts <= team.hit_rate < 1


class TestLive:
    """What a running cluster is asked."""

    def test_only_one_arm_has_a_line_that_nobody_strips_and_that_changes(self) -> None:
        """The published experiment varied a session line; the stripped arm has an attribution header."""
        assert front_line("stable", 1) == front_line("stable", 2)
        assert front_line("varying", 1) != front_line("varying", 2)
        assert front_line("varying", 1).startswith("Session context: ")
        assert front_line("stripped", 1) != front_line("stripped", 2)
        assert front_line("stripped", 1).startswith("x-anthropic-billing-header: ")

    def test_lines_of_an_arm_have_one_length(self) -> None:
        """So that prompts have."""
        for arm in ("stable", "varying", "stripped"):
            assert len({len(front_line(arm, number)) for number in range(50)}) == 1

    def test_the_line_is_a_block_of_its_own_before_the_prompt(self) -> None:
        """As clients send it."""
        sent = msgspec.json.decode(body("m", "line", sentences(1, 3)))
        assert [block["text"] for block in sent["system"]] == ["line", sentences(1, 3)]
        assert SYSTEM_SENTENCES > 2_000

    def test_each_arm_is_asked_equally_often_after_a_first_request_that_is_not_counted(self, streaming: Server) -> None:
        """Against a server that answers at once and tells its usage; the prompt's size is the server's word."""
        arms = measure_arms(Running("stub", streaming.url, "m"))
        lines = Counter(sent["system"][0]["text"].split()[0] for sent in streaming.asked)
        assert lines["x-anthropic-billing-header:"] == REQUESTS_PER_ARM + 1
        assert lines["Session"] == 2 * REQUESTS_PER_ARM + 1
        assert (arms.requests_per_arm, arms.prompt_tokens) == (REQUESTS_PER_ARM, 77)
        assert min(arms.stable_ms, arms.varying_ms, arms.stripped_ms) > 0

    def test_the_team_plays_all_its_calls(self) -> None:
        """Nothing is cut or left out as a warm-up."""
        settings = make_settings(**TEAM)
        assert (settings.sessions, settings.warmup_s, settings.cancel_share, settings.heads) == (4, 0.0, 0.0, 1)

    def test_a_missing_peer_is_said_before_anything_starts(self, tmp_path: Path, capsys: Any) -> None:
        """And no file is written."""
        assert article.main(["--lab", str(tmp_path), "--json", str(tmp_path / "article.json")]) == 2
        assert "no environment of dynamo" in capsys.readouterr().err
        assert not (tmp_path / "article.json").exists()
