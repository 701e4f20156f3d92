"""Every request ends in exactly one outcome, counted once and logged once, whatever way it takes through the app."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, get_args

import pytest

from cluster.api.outcomes import OnceOnly, Outcome, Report, outcome_of
from cluster.asgi import ClientGoneError
from cluster.ingress import build_app
from cluster.request_log import line_of
from cluster.status_metrics import REQUESTS, increments
from cluster.tenants import Tenants
from router.errors import (
    CutShort,
    DeadlinePassed,
    InvalidRequest,
    KvistBug,
    NoReplica,
    Quarantined,
    ReplicaDied,
    ReplicaGone,
)
from router.limits import MAX_BODY_BYTES
from tests.cluster.support import CALM, EngineBackend, ScriptedEngine

if TYPE_CHECKING:
    from starlette.types import Message

    from cluster.backend import Job
    from cluster.models.served import ServedModel
    from tests.cluster.support import EngineStream

pytestmark = pytest.mark.anyio
PATHS = ["/v1/messages", "/v1/chat/completions", "/v1/completions", "/v1/responses"]
KEY = "key"


class Faulty(EngineBackend):
    """A backend whose `start` raises `fault`, if there is one."""

    fault: Exception | None = None

    def start(self, job: Job, *, exclude: frozenset[str] = frozenset()) -> EngineStream:
        if self.fault is not None:
            raise self.fault
        return super().start(job, exclude=exclude)


class Client:
    """One request without a socket. It goes after `patience` writes, or before its body is whole, if told so."""

    def __init__(self, served: ServedModel, path: str, body: bytes, *, key: str = KEY) -> None:
        self.reports: list[Report] = []
        self.engine = ScriptedEngine()
        self.backend = Faulty(self.engine)
        self.writes = 0
        self.patience: int | None = None
        self.goes_before_its_body = False
        self.breaks_on_write = False
        self.leave = asyncio.Event()
        self._bodies = [body]
        self._app = build_app(
            models={"tiny": served},
            backend=self.backend,
            tenants=Tenants.sharing_default([KEY]),
            on_outcome=self.reports.append,
            pacing=CALM,
        )
        headers = [(b"authorization", f"Bearer {key}".encode())]
        self._scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}

    async def run(self) -> None:
        """To its end."""
        async with asyncio.timeout(30):
            await self._app(self._scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self.goes_before_its_body:
            return {"type": "http.disconnect"}
        if self._bodies:
            return {"type": "http.request", "body": self._bodies.pop()}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.breaks_on_write:
            raise OSError("the connection broke")
        self.writes += bool(message.get("body"))
        if self.patience is not None and self.writes >= self.patience:
            self.leave.set()
            await asyncio.sleep(3600)


def body_of(path: str, **fields: Any) -> bytes:
    words: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
    if path == "/v1/responses":
        words = {"input": "hello", "max_output_tokens": 20}
    elif path == "/v1/completions":
        words = {"prompt": "hello", "max_tokens": 20}
    return json.dumps({"model": "tiny", **words, **fields}).encode()


def assert_one(client: Client, outcome: Outcome) -> None:
    """One report, one count, one line."""
    [report] = client.reports
    assert report.outcome == outcome
    counts = [sample for sample in increments(report, known_models=["tiny"]) if sample.metric is REQUESTS]
    assert [(sample.labels[-1], sample.value) for sample in counts] == [(outcome, 1)]
    assert json.loads(line_of(report))["outcome"] == outcome


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_to_its_end_is_completed(served: ServedModel, path: str, stream: bool) -> None:
    client = Client(served, path, body_of(path, stream=stream))
    await client.run()
    assert_one(client, "completed")


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b"{", KEY),
        (b"[]", KEY),
        (body_of("", model="nobody"), KEY),
        (body_of(""), "wrong"),
        (body_of("", max_tokens=-1), KEY),
        (body_of("", messages=[{"role": "user", "content": "word " * 9000}]), KEY),
        (b" " * (MAX_BODY_BYTES + 1), KEY),
    ],
    ids=["no JSON", "no object", "unknown model", "unknown key", "bad field", "too long", "too large"],
)
async def test_what_cannot_be_served_as_sent_is_the_clients_error(served: ServedModel, body: bytes, key: str) -> None:
    client = Client(served, "/v1/messages", body, key=key)
    await client.run()
    assert_one(client, "client_error")


FAULTS: list[tuple[Exception, Outcome]] = [
    (InvalidRequest("no"), "client_error"),
    (NoReplica("full"), "rejected_capacity"),
    (DeadlinePassed("too late"), "rejected_deadline"),
    (ReplicaDied("dead"), "failed_replica"),
    (ReplicaGone("gone"), "failed_replica"),
    (CutShort("cut"), "failed_replica"),
    (Quarantined("poison"), "failed_replica"),
    (KvistBug("ours"), "failed_internal"),
    (ValueError("a bug"), "failed_internal"),
]


@pytest.mark.parametrize(("fault", "outcome"), FAULTS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_fault_has_its_outcome_before_the_choice_before_the_first_token_and_in_the_middle(
    served: ServedModel, fault: Exception, outcome: Outcome, path: str, stream: bool
) -> None:
    at_the_choice, at_once, later = (Client(served, path, body_of(path, stream=stream)) for _ in range(3))
    at_the_choice.backend.fault = fault
    at_once.engine.script, at_once.engine.error = [], fault
    later.engine.error = fault
    for client in (at_the_choice, at_once, later):
        await client.run()
        assert_one(client, outcome)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_leaves_has_cancelled_at_every_stage(served: ServedModel, stream: bool) -> None:
    """Before its body, while the prompt is computed, and in the middle of the answer."""
    before, waiting, reading = (Client(served, PATHS[0], body_of(PATHS[0], stream=stream)) for _ in range(3))
    before.goes_before_its_body = True
    waiting.engine.gate.clear()
    asyncio.get_running_loop().call_later(0.05, waiting.leave.set)
    reading.engine.endless = True
    if stream:
        reading.patience = 1
    else:
        asyncio.get_running_loop().call_later(0.05, reading.leave.set)
    for client in (before, waiting, reading):
        await client.run()
        assert_one(client, "cancelled")
        client.engine.endless = False


async def test_a_client_that_leaves_behind_the_last_byte_was_served(served: ServedModel) -> None:
    client = Client(served, PATHS[0], body_of(PATHS[0]))
    client.patience = 1
    await client.run()
    assert_one(client, "completed")


async def test_a_server_that_stops_has_cancelled(served: ServedModel) -> None:
    """The cancellation passes on."""
    client = Client(served, PATHS[0], body_of(PATHS[0]))
    client.engine.gate.clear()
    task = asyncio.create_task(client.run())
    await client.engine.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_one(client, "cancelled")


async def test_a_connection_that_breaks_while_a_fault_is_told_does_not_hide_the_fault(served: ServedModel) -> None:
    client = Client(served, PATHS[0], body_of(PATHS[0]))
    client.backend.fault = NoReplica("full")
    client.breaks_on_write = True
    with contextlib.suppress(OSError, ClientGoneError):
        await client.run()
    assert_one(client, "rejected_capacity")


def test_every_outcome_is_reached_above() -> None:
    """A new one needs a way to it."""
    assert {outcome for _, outcome in FAULTS} | {"completed", "cancelled"} == set(get_args(Outcome))
    assert all(outcome_of(fault) == outcome for fault, outcome in FAULTS)


def test_a_second_report_of_one_request_is_our_bug_and_is_not_counted() -> None:
    reports: list[Report] = []
    sink, report = OnceOnly(reports.append), Report(request_id="r", api="chat")
    sink(report)
    with pytest.raises(KvistBug, match="r ended twice"):
        sink(report)
    assert reports == [report]
