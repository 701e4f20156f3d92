"""The generations that answer one request: one per prompt and choice, read together, each to its ending."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from cluster.api.dialect import Answer
from cluster.api.responses import remember
from cluster.backend import Job
from cluster.news import News
from cluster.output.assembly import Assembly, Ending, Piece, Usage
from cluster.output.events import CallBroken, CallEnd, blocks_of, merged
from cluster.prompt.exact_turns import Generated
from cluster.pump import Pump
from router.errors import PromptTooLong, ReplicaDied
from router.hashing import BYTES_PER_TOKEN
from workers.engine import Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from cluster.backend import Routed
    from cluster.exchange import Exchange, Prepared
    from cluster.output.assembly import ScoredToken
    from cluster.output.events import Event


class Choice:
    """One running generation and all that it has said."""

    def __init__(self, pump: Pump, assembly: Assembly, sampling: Sampling, prepared: Prepared) -> None:
        self.pump = pump
        self.assembly = assembly
        self.ending: Ending | None = None
        self._asked = prepared.conversation.limits.max_tokens
        self._sampling = sampling
        self._held: list[Piece] = []
        self._events: list[Event] = []
        self._scores: list[ScoredToken] = []

    def read(self) -> bool:
        """Read what has come; whether it ends the choice or a call. Raises what ended the stream, `ReplicaDied` for a
        torn one."""
        deltas = self.pump.take()
        if not deltas:
            if self.pump.ended:
                raise self.assembly.fault or ReplicaDied("the stream ended without a finish reason")
            return False
        piece = self._worded(self.assembly.push_all(deltas))
        self._held.append(piece)
        self.ending = piece.ending
        self._events += piece.events
        self._scores += piece.scores
        return piece.ending is not None or any(isinstance(event, CallEnd | CallBroken) for event in piece.events)

    def take(self) -> Piece | None:
        """All that was read since, None if nothing was."""
        held, self._held = self._held, []
        if len(held) < 2:
            return held[0] if held else None
        events = merged([event for piece in held for event in piece.events])
        return Piece(events, held[-1].ending, tuple([score for piece in held for score in piece.scores]))

    def answer(self) -> Answer:
        """The whole of it. It must have ended."""
        assert self.ending is not None
        return Answer(blocks_of(self._events), self.ending, tuple(self._scores))

    def remember(self, prepared: Prepared) -> None:
        """Keep its tokens for the request that returns this turn."""
        if prepared.model.turns is not None and not prepared.conversation.prompts:
            said, tokens = self.answer().blocks, bytes(self.assembly.tokens)
            generated = Generated(prepared.prompts[0], prepared.past, said, tokens)
            prepared.model.turns.remember(prepared.conversation, prepared.tenant.id, generated)

    def _worded(self, piece: Piece) -> Piece:
        """A request that only fills the cache says nothing; one cut by the context window says so."""
        if self._asked == 0:
            return Piece((), piece.ending and Ending("length"))
        clamped = self._asked is None or self._asked > self._sampling.max_tokens
        if piece.ending == Ending("length") and clamped:
            return piece._replace(ending=Ending("context_window"))
        return piece


class Answering:
    """An async context manager; leaving it, however, aborts what still runs.

    What can wait is held back for `pause_s` after every `pause`, and comes as one piece; the end of a choice or of a
    call brings at once what was held.
    """

    def __init__(self, exchange: Exchange, prepared: Prepared, *, pause_s: float) -> None:
        self.exchange = exchange
        self._prepared = prepared
        self._pause_s = pause_s
        self._quiet_until_s = 0.0
        self._clock = asyncio.get_running_loop().time
        self._news = News()
        self._stack = AsyncExitStack()
        self._choices: list[Choice] = []

    async def __aenter__(self) -> Answering:
        try:
            for tokens in self._prepared.prompts:
                sampling = _sampling(self._prepared, tokens)
                for _ in range(self._prepared.conversation.limits.choices):
                    self._choices.append(await self._start(tokens, sampling))
        except BaseException:
            await self._stack.aclose()
            raise
        routed = self._learn_route()
        self.exchange.stages.done("route")
        self.exchange.stages.split("route", "hash", 0.0 if routed is None else routed.hash_s)
        for choice in self._choices:
            choice.assembly.cached_tokens = self.exchange.report.predicted_cached_tokens
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._news.close()
        report = self.exchange.report
        report.cached_tokens, report.output_tokens = self.usage[1:3]
        routes = [routed for choice in self._choices if (routed := choice.pump.stream.routed) is not None]
        report.retries = sum(routed.retries for routed in routes)
        report.resumes = sum(routed.resumes for routed in routes)
        report.failed_on = tuple([replica for routed in routes for replica in routed.failed_on])
        await self._stack.aclose()

    @property
    def ended(self) -> bool:
        """Whether every choice has."""
        return all(choice.ending is not None for choice in self._choices)

    @property
    def usage(self) -> Usage:
        """Of all choices together; a prompt that several share counts once, as its first choice found it."""
        usages = [choice.assembly.usage for choice in self._choices]
        prompts = usages[:: self._prepared.conversation.limits.choices]
        silent = self._prepared.conversation.limits.max_tokens == 0
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in prompts),
            cached_tokens=sum(usage.cached_tokens for usage in prompts),
            output_tokens=0 if silent else sum(usage.output_tokens for usage in usages),
            reasoning_tokens=0 if silent else sum(usage.reasoning_tokens for usage in usages),
        )

    def pause(self) -> None:
        """Something is being written, so what follows can wait a little."""
        self._quiet_until_s = self._clock() + self._pause_s

    async def next(self, *, timeout_s: float | None) -> Sequence[tuple[int, Piece]]:
        """What is new, by choice; nothing when `timeout_s` passed without news. Raises what a stream raised."""
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        held = False
        while await self._news.wait(
            quiet_until_s=self._quiet_until_s, deadline_s=self._quiet_until_s if held else deadline_s
        ):
            presses = self._read()
            held = True
            if presses or self._clock() >= self._quiet_until_s:
                break
        return [(index, piece) for index, choice in enumerate(self._choices) if (piece := choice.take()) is not None]

    def _read(self) -> bool:
        """Let every choice read what has come; whether something of it cannot wait."""
        report = self.exchange.report
        if report.ttft_s is None:
            report.ttft_s = self.exchange.stages.since_start()
            routed = self._learn_route()
            if routed is not None and routed.queue_s is not None:
                self.exchange.stages.note("queue", routed.queue_s)
        presses = False
        for choice in self._choices:
            if choice.ending is None:
                presses |= choice.read()
                if choice.ending is None and choice.pump.ended:
                    self._news.tell(urgent=True)  # how it ended has not been looked at
                    presses = True  # what was said before a fault is said
        return presses

    def answers(self) -> Sequence[Answer]:
        """Every choice whole, when all have ended."""
        return [choice.answer() for choice in self._choices]

    def remember(self) -> None:
        """Keep what was said for the requests that build on it."""
        prepared, exchange = self._prepared, self.exchange
        if prepared.parsed.hints.store:
            answer, memory = self._choices[0].answer(), exchange.services.responses
            remember(prepared.parsed, answer, memory, tenant=prepared.tenant.id, suffix=exchange.id)
        for choice in self._choices:
            if choice.ending is not None and choice.ending.reason in {"end", "tool_use"}:
                choice.remember(prepared)

    async def _start(self, tokens: bytes, sampling: Sampling) -> Choice:
        prepared = self._prepared
        job = job_of(self.exchange, prepared, tokens, sampling)
        assembly = Assembly(
            prepared.model.vocabulary,
            prepared.model.parser(prepared.conversation, tokens),
            stops=prepared.conversation.limits.stop,
            prompt_tokens=len(tokens) // BYTES_PER_TOKEN,
        )
        stream = self.exchange.services.backend.start(job)
        pump = await self._stack.enter_async_context(Pump(stream, self._news, waits=assembly.waits))
        return Choice(pump, assembly, sampling, prepared)

    def _learn_route(self) -> Routed | None:
        routed = self._choices[0].pump.stream.routed
        if routed is not None:
            self.exchange.report.replica = routed.replica
            self.exchange.report.predicted_cached_tokens = routed.predicted_cached_tokens
        return routed


def job_of(exchange: Exchange, prepared: Prepared, tokens: bytes, sampling: Sampling) -> Job:
    """One generation of a request, as a backend takes it."""
    return Job(
        request_id=exchange.report.request_id,
        model=prepared.model.name,
        tokens=tokens,
        sampling=sampling,
        tenant=prepared.tenant,
        session=exchange.report.session,
        prefix=prepared.prefix,
    )


def _sampling(prepared: Prepared, tokens: bytes) -> Sampling:
    """The client's wishes, cut to what is left of the context window. Raises `PromptTooLong`."""
    limits, longest = prepared.conversation.limits, prepared.model.max_model_len - 1
    prompt_tokens = len(tokens) // BYTES_PER_TOKEN
    if prompt_tokens > longest:
        raise PromptTooLong(prompt_tokens, longest)
    left = prepared.model.max_model_len - prompt_tokens
    return Sampling(
        max_tokens=left if limits.max_tokens is None else max(1, min(limits.max_tokens, left)),
        temperature=limits.temperature,
        top_p=limits.top_p,
        top_k=limits.top_k,
        min_p=limits.min_p,
        presence_penalty=limits.presence_penalty,
        frequency_penalty=limits.frequency_penalty,
        repetition_penalty=limits.repetition_penalty,
        logit_bias=limits.logit_bias,
        seed=limits.seed,
        logprobs=limits.logprobs,
        structured=prepared.model.constraint(prepared.conversation, tokens),
    )
