"""What the endpoints do with a request: count its tokens, or answer it, whole or as events."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from cluster.api.dialect import AnswerId
from cluster.backend import Job
from cluster.exchange import Exchange
from cluster.output.assembly import Assembly
from cluster.pump import Pump
from router.errors import PromptTooLong, ReplicaDied
from workers.engine import Sampling

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from cluster.api.dialect import Dialect, Reply
    from cluster.backend import TokenStream
    from cluster.exchange import Prepared, Services
    from cluster.output.assembly import Piece
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

    async def _respond(self, exchange: Exchange, tenant: Tenant, body: bytes) -> None:
        prepared = await exchange.prepare(tenant, body)
        await exchange.send_json({"input_tokens": prepared.prompt_tokens})


class Generate(Endpoint):
    """An answer, whole or as events."""

    async def _respond(self, exchange: Exchange, tenant: Tenant, body: bytes) -> None:
        prepared = await exchange.prepare(tenant, body)
        sampling = _sampling(prepared)
        conversation = prepared.conversation
        assembly = Assembly(
            prepared.model.vocabulary, stops=conversation.limits.stop, prompt_tokens=prepared.prompt_tokens
        )
        exchange.reply = reply = self._dialect.reply(conversation, AnswerId(exchange.id, int(time.time())))
        stream = self._services.backend.start(_job(exchange, prepared, sampling))
        async with Pump(stream) as pump:
            exchange.stages.done("route")
            answer = Answer(exchange, stream, pump, assembly)
            if conversation.stream:
                await _stream(answer, reply)
            else:
                await _collect(answer, reply)


class Answer:
    """A running generation, and what the report learns from it."""

    def __init__(self, exchange: Exchange, stream: TokenStream, pump: Pump, assembly: Assembly) -> None:
        self.exchange = exchange
        self.assembly = assembly
        self._stream = stream
        self._pump = pump
        self._learn_route()
        assembly.cached_tokens = exchange.report.predicted_cached_tokens

    async def next(self, *, timeout_s: float | None) -> Piece | None:
        """The next piece; None when `timeout_s` passed without news. Raises `ReplicaDied` for a torn stream."""
        deltas = await self._pump.take(timeout_s=timeout_s)
        report = self.exchange.report
        if not deltas:
            if self._pump.ended:
                raise ReplicaDied("the stream ended without a finish reason")
            self._learn_route()
            return None
        if report.ttft_s is None:
            report.ttft_s = self.exchange.stages.since_start()
        piece = self.assembly.push_all(deltas)
        self._learn_route()
        report.cached_tokens, report.output_tokens = self.assembly.usage[1:]
        return piece

    def _learn_route(self) -> None:
        routed = self._stream.routed
        if routed is not None:
            self.exchange.report.replica = routed.replica
            self.exchange.report.predicted_cached_tokens = routed.predicted_cached_tokens


async def _collect(answer: Answer, reply: Reply) -> None:
    texts: list[str] = []
    while True:
        piece = await answer.next(timeout_s=None)
        assert piece is not None  # only a timeout gives none
        texts.append(piece.text)
        if piece.ending is not None:
            await answer.exchange.send_json(reply.whole("".join(texts), piece.ending, answer.assembly.usage))
            return


async def _stream(answer: Answer, reply: Reply) -> None:
    """Headers and start wait for the first delta, which brings the true usage, but no longer than a ping would."""
    exchange = answer.exchange
    timeout_s = exchange.services.ping_interval_s
    piece = await answer.next(timeout_s=timeout_s)
    exchange.report.status = 200
    await exchange.events.start(exchange.headers())
    events = reply.start(answer.assembly.usage)
    while True:
        if piece is None:
            events += reply.ping()
        else:
            events += reply.text(piece.text) if piece.text else b""
            if piece.ending is not None:
                await exchange.end_events(events + reply.finish(piece.ending, answer.assembly.usage))
                return
        if events:
            await exchange.events.write(events)
        events = b""
        piece = await answer.next(timeout_s=timeout_s)


def _sampling(prepared: Prepared) -> Sampling:
    """The client's wishes, cut to what is left of the context window. Raises `PromptTooLong`."""
    limits, longest = prepared.conversation.limits, prepared.model.max_model_len - 1
    if prepared.prompt_tokens > longest:
        raise PromptTooLong(prepared.prompt_tokens, longest)
    left = prepared.model.max_model_len - prepared.prompt_tokens
    return Sampling(
        max_tokens=left if limits.max_tokens is None else min(limits.max_tokens, left),
        temperature=limits.temperature,
        top_p=limits.top_p,
        top_k=limits.top_k,
        seed=limits.seed,
    )


def _job(exchange: Exchange, prepared: Prepared, sampling: Sampling) -> Job:
    return Job(
        request_id=exchange.report.request_id,
        model=prepared.conversation.model,
        tokens=prepared.tokens,
        sampling=sampling,
        tenant=prepared.tenant,
        session=exchange.report.session,
    )
