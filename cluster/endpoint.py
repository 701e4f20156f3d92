"""What the endpoints do with a request: count its tokens, or answer it, whole or as events."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from cluster.answering import Answering, job_of
from cluster.api.dialect import AnswerId
from cluster.exchange import Exchange
from router.limits import MAX_FLUSH_MS
from workers.engine import Sampling

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from cluster.api.dialect import Dialect, Reply
    from cluster.exchange import Services
    from cluster.tenants import Tenant


class Endpoint(ABC):
    """ASGI endpoint of one protocol: every request becomes an `Exchange`."""

    def __init__(self, services: Services, dialect: Dialect) -> None:
        self._services = services
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        await Exchange(self._services, self._dialect, scope, send).run(receive, self._respond)

    @abstractmethod
    async def _respond(self, exchange: Exchange, tenant: Tenant, body: bytes) -> None:
        """Send the whole answer to `body`. What it raises is answered by the exchange."""


class CountTokens(Endpoint):
    """How long the prompt would be, exactly."""

    answer: ClassVar[dict[str, str]] = {}

    async def _respond(self, exchange: Exchange, tenant: Tenant, body: bytes) -> None:
        prepared = await exchange.prepare(tenant, body)
        await exchange.send_json({**self.answer, "input_tokens": prepared.prompt_tokens})


class CountInput(CountTokens):
    """The same, as OpenAI's clients read it."""

    answer: ClassVar[dict[str, str]] = {"object": "response.input_tokens"}


class Preview(Endpoint):
    """How the replicas stand for a request; it is sent to none."""

    async def _respond(self, exchange: Exchange, tenant: Tenant, body: bytes) -> None:
        prepared = await exchange.prepare(tenant, body)
        job = job_of(exchange, prepared, prepared.prompts[0], Sampling(max_tokens=1))
        replicas = [score._asdict() for score in self._services.backend.preview(job)]
        await exchange.send_json({"prompt_tokens": prepared.prompt_tokens, "replicas": replicas})


class Generate(Endpoint):
    """An answer, whole or as events."""

    async def _respond(self, exchange: Exchange, tenant: Tenant, body: bytes) -> None:
        prepared = await exchange.prepare(tenant, body)
        conversation = prepared.conversation
        exchange.reply = reply = self._dialect.reply(conversation, AnswerId(exchange.id, int(time.time())))
        pause_ms = self._services.pacing.flush_ms if conversation.stream else MAX_FLUSH_MS
        async with Answering(exchange, prepared, pause_s=pause_ms / 1e3) as answering:
            if conversation.stream:
                await _stream(answering, reply)
            else:
                await _collect(answering, reply)


async def _collect(answering: Answering, reply: Reply) -> None:
    while not answering.ended:
        answering.pause()
        await answering.next(timeout_s=None)
    answering.remember()  # before anybody can build on it
    await answering.exchange.send_json(reply.whole(answering.answers(), answering.usage))


async def _stream(answering: Answering, reply: Reply) -> None:
    """Headers and start wait for the first delta, which brings the true usage, but no longer than a ping would.

    A client that does not read holds up everything behind it: what waits for it is bounded.

    Pings also stand for what is generated and not said: hidden reasoning, or what may yet become a call.
    """
    exchange = answering.exchange
    clock, timeout_s = exchange.services.clock, exchange.services.pacing.ping_interval_s
    pieces = await answering.next(timeout_s=timeout_s)
    exchange.report.status = 200
    await exchange.events.start(exchange.headers())
    events, written_s = reply.start(answering.usage), clock()
    while True:
        said = b"".join(reply.say(piece, choice) for choice, piece in pieces)
        if answering.ended:
            answering.remember()
            await exchange.end_events(events + said + reply.finish(answering.usage))
            return
        if said:
            answering.pause()
        elif not pieces or clock() - written_s >= timeout_s:
            said = reply.ping()
        if events or said:
            await exchange.events.write(events + said)
            events, written_s = b"", clock()
        pieces = await answering.next(timeout_s=timeout_s)
