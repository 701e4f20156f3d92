"""When events of a stream leave: at once what must not wait, together what can, never more than a client takes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from cluster.backend import Routed
from cluster.config import parse_config
from cluster.exchange import Pacing
from cluster.ingress import build_app
from cluster.tenants import Tenants
from router.errors import InvalidRequest
from router.limits import DATA_STREAM_TOKENS, FLUSH_MS, MAX_FLUSH_MS
from tests.cluster.support import EngineBackend, ScriptedEngine, packed, spoken
from workers.engine import TokenDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Message

    from cluster.api.outcomes import Report
    from cluster.backend import Job
    from cluster.models.served import ServedModel

pytestmark = pytest.mark.anyio
FOREVER = Pacing(ping_interval_s=3600, flush_ms=3_600_000)
TOOL = {"name": "look", "description": "d", "input_schema": {"type": "object"}}
ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 4000, "stream": True}
ASK["messages"] = [{"role": "user", "content": "hello"}]


class Source:
    """A stream that a test says, delta by delta."""

    routed = Routed(replica="replica-1", predicted_cached_tokens=0)

    def __init__(self) -> None:
        self._deltas: asyncio.Queue[TokenDelta] = asyncio.Queue()

    def say(self, tokens: bytes, *, last: bool = False) -> None:
        """One delta."""
        self._deltas.put_nowait(TokenDelta(tokens=tokens, finish_reason="stop" if last else None))

    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        while True:
            delta = await self._deltas.get()
            yield delta
            if delta.finish_reason is not None:
                return

    async def aclose(self) -> None:
        """Nothing to abort."""


class SourceBackend(EngineBackend):
    """Every job is answered by one source."""

    def __init__(self) -> None:
        super().__init__(ScriptedEngine())
        self.source = Source()

    def start(self, job: Job, *, exclude: frozenset[str] = frozenset()) -> Source:  # type: ignore[override]
        self.jobs.append(job)
        return self.source


class Call:
    """One request into the app without a socket. Every body sent is a write; `reads` clear means that nobody reads."""

    def __init__(self, served: ServedModel, pacing: Pacing, backend: EngineBackend, **fields: Any) -> None:
        self.writes: list[bytes] = []
        self.reports: list[Report] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._body = json.dumps({**ASK, **fields}).encode()
        app = build_app(
            models={"tiny": served}, backend=backend, tenants=Tenants(), on_outcome=self.reports.append, pacing=pacing
        )
        scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": [], "query_string": b""}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._body:
            body, self._body = self._body, b""
            return {"type": "http.request", "body": body}
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Message) -> None:
        if message.get("body"):
            self.writes.append(message["body"])
            await self.reads.wait()

    async def written(self, count: int) -> None:
        """As soon as there are so many writes."""
        async with asyncio.timeout(20):
            while len(self.writes) < count:
                await asyncio.sleep(0)


def events(write: bytes) -> list[str]:
    """Their names."""
    return [line.removeprefix("event: ") for line in write.decode().splitlines() if line.startswith("event: ")]


def text(write: bytes) -> str:
    """What all text deltas add up to."""
    data = [json.loads(line[6:]) for line in write.decode().splitlines() if line.startswith("data: ")]
    return "".join(event["delta"].get("text", "") for event in data if event["type"] == "content_block_delta")


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_the_start_and_the_first_text_leave_in_one_write(served: ServedModel) -> None:
    backend = SourceBackend()
    call = Call(served, FOREVER, backend)
    backend.source.say(packed([300]))
    await call.written(1)
    assert events(call.writes[0]) == ["message_start", "content_block_start", "content_block_delta"]
    call.task.cancel()


async def test_what_follows_waits_and_leaves_as_one_event_with_the_end(served: ServedModel) -> None:
    backend = SourceBackend()
    call = Call(served, FOREVER, backend)
    one, *others = spoken(served, "Held back until the end, then said at once.")
    backend.source.say(one)
    await call.written(1)
    for tokens in others:
        backend.source.say(tokens)
        await settle()
    assert len(call.writes) == 1
    backend.source.say(b"", last=True)
    await call.task
    assert len(call.writes) == 2
    assert events(call.writes[1]) == ["content_block_delta", "content_block_stop", "message_delta", "message_stop"]
    assert text(b"".join(call.writes)) == "Held back until the end, then said at once."


async def test_a_first_delta_without_text_does_not_hold_back_the_first_text(served: ServedModel) -> None:
    backend = SourceBackend()
    call = Call(served, FOREVER, backend)
    cut = next(token for token in range(4096) if served.vocabulary.bytes_of(packed([token])) == b"\xc3")
    rest = next(token for token in range(4096) if served.vocabulary.bytes_of(packed([token])) == b"\xa9")
    backend.source.say(packed([cut]))
    await call.written(1)
    backend.source.say(packed([rest]))
    await call.written(2)
    assert (events(call.writes[0]), text(call.writes[1])) == (["message_start"], "é")
    call.task.cancel()


async def test_without_a_flush_interval_every_delta_is_written(served: ServedModel) -> None:
    backend = SourceBackend()
    call = Call(served, Pacing(flush_ms=0), backend)
    for count in range(1, 6):
        backend.source.say(packed([300]))
        await call.written(count)
    call.task.cancel()


async def test_what_waits_leaves_when_the_interval_is_over(served: ServedModel) -> None:
    """Without anything else coming."""
    backend = SourceBackend()
    call = Call(served, Pacing(flush_ms=20), backend)
    backend.source.say(packed([300]))
    await call.written(1)
    for _ in range(3):
        backend.source.say(packed([301]))
    await call.written(2)
    assert events(call.writes[1]) == ["content_block_delta"]
    call.task.cancel()


async def test_a_complete_call_is_not_held_back(served: ServedModel) -> None:
    """Though the answer goes on."""
    backend = SourceBackend()
    call = Call(served, FOREVER, backend, tools=[TOOL])
    said = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
    for tokens in spoken(served, said):
        backend.source.say(tokens)
    async with asyncio.timeout(20):
        while b"content_block_stop" not in b"".join(call.writes):
            await asyncio.sleep(0)
    assert not call.task.done()
    call.task.cancel()


async def test_a_stop_string_ends_the_answer_at_once(served: ServedModel) -> None:
    backend = SourceBackend()
    call = Call(served, FOREVER, backend, stop_sequences=["END"])
    for tokens in spoken(served, "a b c END d"):
        backend.source.say(tokens)
    async with asyncio.timeout(20):
        await call.task
    assert events(call.writes[-1])[-1] == "message_stop"
    assert text(b"".join(call.writes)) == "a b c "


async def test_whole_answers_are_read_now_and_then_and_end_at_once(served: ServedModel) -> None:
    backend = SourceBackend()
    call = Call(served, FOREVER, backend, stream=False)
    for tokens in spoken(served, "All of it."):
        backend.source.say(tokens)
    backend.source.say(b"", last=True)
    await call.task
    assert json.loads(call.writes[0])["content"] == [{"type": "text", "text": "All of it."}]


async def test_data_stream_tokens_stop_a_client_that_does_not_read_from_filling_memory(served: ServedModel) -> None:
    """DATA_STREAM_TOKENS is what the ingress holds of its answer; the engine's stream is read no further."""
    backend = SourceBackend()
    call = Call(served, Pacing(flush_ms=0), backend)
    call.reads.clear()
    backend.source.say(packed([300]))
    await call.written(1)
    for _ in range(3 * DATA_STREAM_TOKENS):
        backend.source.say(packed([300]))
    await settle()
    left = backend.source._deltas.qsize()
    assert left >= 2 * DATA_STREAM_TOKENS - 1
    assert len(call.writes) == 1
    await settle()
    assert backend.source._deltas.qsize() == left
    call.reads.set()
    backend.source.say(b"", last=True)
    await call.task
    assert call.reports[0].output_tokens == 3 * DATA_STREAM_TOKENS + 1


def test_max_flush_ms_stops_an_operator_from_making_answers_stutter() -> None:
    """MAX_FLUSH_MS is what a cluster can be given; FLUSH_MS is what it has."""
    models = [{"name": "m"}]
    assert parse_config({"models": models}).flush_ms == FLUSH_MS
    assert parse_config({"models": models, "flush_ms": MAX_FLUSH_MS}).flush_ms == MAX_FLUSH_MS
    for wrong in (MAX_FLUSH_MS + 1, -1):
        with pytest.raises(InvalidRequest, match="flush_ms"):
            parse_config({"models": models, "flush_ms": wrong})
