"""What operators see: numbers for monitoring, a table and words for people."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from cluster.api.outcomes import Report
from cluster.cli import app
from cluster.prompt.conversation import Change
from cluster.ray_metrics import RayMetrics
from cluster.request_log import line_of
from cluster.status_metrics import (
    BAD,
    CATALOGUE,
    IGNORED,
    PROMPTS,
    ROUTABLE,
    STAGE,
    TURNS,
    Sample,
    held_samples,
    increments,
    samples,
)
from router.errors import NoReplica
from router.fleet import Fleet
from router.limits import MAX_HINT_CHARS, MAX_LOGGED_LINES
from router.replicas import ReplicaInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.replicas import ReplicaStatus


ANSWERED: dict[str, Any] = {"prompt_tokens": 9, "ttft_s": 0.5, "stages_s": {"parse": 0.001, "route": 0.002}}


def statuses() -> list[ReplicaStatus]:
    """Of a fleet with one replica that has not spoken yet."""
    fleet = Fleet(model="m")
    info = ReplicaInfo(
        replica="r1",
        incarnation="i",
        model="m",
        block_size=16,
        pool_blocks=100,
        max_model_len=1000,
        events="tcp://127.0.0.1:1",
        snapshots="tcp://127.0.0.1:2",
    )
    fleet.join(info, 0.0)
    fleet.on_frame("r1", b"garbage", 0.5)
    return fleet.status(1.0)


def report(**changes: Any) -> Report:
    """Of a request whose system text held an attribution line."""
    removed = Change("attribution_line", "system[0]", "x-anthropic-billing-header: cc_version=1;", "")
    fields = {"request_id": "req_1", "api": "messages", "outcome": "completed", "model": "m", "changes": (removed,)}
    return Report(**fields | changes)


def test_every_metric_of_the_catalogue_has_a_sample_with_its_labels() -> None:
    """Names are unique; a sample has as many labels as its metric."""
    of_replicas, of_requests = list(samples(statuses())), list(increments(report(**ANSWERED), known_models={"m"}))
    of_models = list(held_samples({"m": 3}))
    assert [(sample.labels, sample.value) for sample in of_models] == [(("m",), 3)]
    assert {sample.metric for sample in of_replicas + of_models + of_requests} == set(CATALOGUE)
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in of_replicas + of_requests)
    assert all(sample.labels[:2] == ("m", "r1") for sample in of_replicas)


def test_a_model_name_that_only_a_client_knows_is_not_a_label() -> None:
    """Else anybody could make as many time series as they like."""
    found = list(increments(report(model="made up", outcome="client_error"), known_models={"m"}))
    assert found[0].labels == ("unknown", "messages", "client_error")


def test_what_is_not_followed_is_counted_by_kind_and_named_in_the_log() -> None:
    """Names are the client's own: no labels."""
    asked = report(ignored=("novel", "odd"), betas=("b-2026",))
    counted = {
        sample.labels: sample.value for sample in increments(asked, known_models={"m"}) if sample.metric is IGNORED
    }
    assert counted == {("m", "field"): 2, ("m", "beta"): 1}
    line = json.loads(line_of(asked))
    assert (line["ignored"], line["betas"]) == (["novel", "odd"], ["b-2026"])


def test_the_time_of_each_stage_is_observed_and_logged() -> None:
    """The first token's too; a request that never had one says nothing of it."""
    for ttft_s, more in ((0.5, [("ttft", 0.5)]), (None, [])):
        answered = report(**ANSWERED | {"ttft_s": ttft_s})
        seen = [
            (sample.labels[1], sample.value)
            for sample in increments(answered, known_models={"m"})
            if sample.metric is STAGE
        ]
        assert seen == [("parse", 0.001), ("route", 0.002), *more]
    assert json.loads(line_of(answered))["stages_ms"] == {"parse": 1.0, "route": 2.0}


def test_histograms_observe_where_counters_add() -> None:
    """A stage that took no time counts; nothing of a counter does not."""
    metrics, seen = RayMetrics(), []
    metrics._instruments[STAGE] = SimpleNamespace(observe=lambda value, tags: seen.append((value, tags["stage"])))
    metrics._instruments[BAD] = SimpleNamespace(inc=lambda value, tags: seen.append((value, tags)))
    metrics.add([Sample(STAGE, ("m", "hash"), 0.0), Sample(BAD, ("m", "r"), 0.0)])
    assert seen == [(0.0, "hash")]


@pytest.mark.parametrize(("warm", "form"), [(True, "warm"), (False, "cold")])
def test_prompts_are_counted_by_whether_the_ingress_knew_their_conversation(*, warm: bool, form: str) -> None:
    asked = report(warm=warm, prompt_tokens=9)
    counted = {sample.labels for sample in increments(asked, known_models={"m"}) if sample.metric is PROMPTS}
    assert counted == {("m", form)}
    assert json.loads(line_of(asked))["warm"] is warm
    unread = increments(report(outcome="client_error"), known_models={"m"})
    assert not [sample for sample in unread if sample.metric is PROMPTS]


def test_past_turns_are_counted_by_how_they_stand_in_the_prompt() -> None:
    turns = report(spliced_turns=3, written_turns=1)
    counted = {
        sample.labels: sample.value for sample in increments(turns, known_models={"m"}) if sample.metric is TURNS
    }
    assert counted == {("m", "spliced"): 3, ("m", "written"): 1}
    line = json.loads(line_of(turns))
    assert (line["spliced_turns"], line["written_turns"]) == (3, 1)


def test_a_requests_log_line_keeps_the_attribution_and_no_prompt_text() -> None:
    """What other rules took away is named, not repeated."""
    other = Change("volatile_line", "system[0]", "the user's secret", "")
    line = json.loads(line_of(report(changes=(*report().changes, other))))
    assert line["attribution"] == ["x-anthropic-billing-header: cc_version=1;"]
    assert line["rules"] == ["attribution_line", "volatile_line"]
    assert "secret" not in json.dumps(line)


def test_a_gauge_that_is_not_there_any_more_falls_to_zero() -> None:
    """As of a replica that has left: monitoring must not count it as routable for ever."""
    metrics = RayMetrics()
    sent: list[tuple[float, dict[str, str]]] = []
    metrics._instruments[ROUTABLE] = SimpleNamespace(set=lambda value, tags: sent.append((value, tags)))
    metrics.send([Sample(ROUTABLE, ("m", "a"), 1.0), Sample(ROUTABLE, ("m", "b"), 1.0)])
    metrics.send([Sample(ROUTABLE, ("m", "b"), 1.0)])
    metrics.send([Sample(ROUTABLE, ("m", "b"), 1.0)])
    assert [value for value, tags in sent if tags["replica"] == "a"] == [1.0, 0.0]


def test_max_logged_lines_stops_a_request_from_filling_the_log() -> None:
    """However many attribution lines its system text held, and however long; the reason of a failure is in it."""
    line = "x-anthropic-billing-header: " + "y" * 10_000
    many = tuple(Change("attribution_line", "system[0]", line, "") for _ in range(MAX_LOGGED_LINES + 50))
    logged = line_of(report(changes=many, error="z" * 10_000))
    assert len(logged) < (MAX_LOGGED_LINES + 4) * MAX_HINT_CHARS
    assert len(json.loads(logged)["attribution"]) == MAX_LOGGED_LINES
    assert json.loads(logged)["error"] == "z" * MAX_HINT_CHARS


def test_counters_grow_by_what_is_new_and_count_on_when_a_replica_starts_anew() -> None:
    """Totals come in, increments go out."""
    metrics = RayMetrics()
    total = Sample(BAD, ("m", "r"), 5.0)
    assert [metrics._growth(total._replace(value=value)) for value in (5.0, 7.0, 7.0, 2.0)] == [5.0, 2.0, 0.0, 2.0]


@contextmanager
def endpoint(code: int, body: dict[str, Any]) -> Iterator[str]:
    """A server that answers every GET alike and keeps the last authorization header."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = json.dumps(body | {"path": self.path, "authorization": self.headers.get("authorization", "")})
            self.send_response(code)
            self.end_headers()
            self.wfile.write(data.encode())

        def log_message(self, *args: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answer(**changes: Any) -> dict[str, Any]:
    rows = [msgspec.to_builtins(status) for status in statuses()]
    return {"ready": True, "warm": True, "detail": "1 of 1 replicas warm", "replicas": rows, **changes}


def test_status_shows_each_replica_and_says_in_words_what_is_wrong() -> None:
    """Exit code 1, as something is: the snapshot is missing and a message was malformed."""
    with endpoint(200, answer()) as url:
        done = CliRunner().invoke(app, ["status", "--url", url])
    assert done.exit_code == 1
    assert "r1: its first snapshot has not come yet: no locality credit" in done.output
    assert "r1: 1 of its messages were malformed" in done.output
    assert "joining" in done.output


def test_status_as_json_is_the_endpoints_answer_and_code_0_means_all_is_well() -> None:
    """The key goes along as a bearer token."""
    with endpoint(200, answer(replicas=[])) as url:
        done = CliRunner().invoke(app, ["status", "--url", url, "--api-key", "k", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["path"] == "/kvist/status"
    assert json.loads(done.output)["authorization"] == "Bearer k"


def test_status_of_nothing_says_where_it_looked_and_what_to_do() -> None:
    """No cluster, and a cluster that asks for a key."""
    done = CliRunner().invoke(app, ["status", "--url", "http://127.0.0.1:9"])
    assert isinstance(done.exception, NoReplica)
    assert "no cluster answers there" in str(done.exception)
    with endpoint(401, {}) as url:
        done = CliRunner().invoke(app, ["status", "--url", url])
    assert "pass --api-key" in str(done.exception)


def test_status_of_another_server_says_that_it_is_not_kvist() -> None:
    """It may well answer JSON."""
    with endpoint(200, {}) as url:
        done = CliRunner().invoke(app, ["status", "--url", url])
    assert "what answers there is not Kvist" in str(done.exception)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "127.0.0.1:abc"])
def test_status_speaks_http_only(url: str) -> None:
    """Whatever else is named is taken for a host and fails as such."""
    done = CliRunner().invoke(app, ["status", "--url", url])
    assert isinstance(done.exception, NoReplica)
