"""Generations that outlive their replicas: a backend over another, whose streams go on elsewhere when a replica fails.

Before the first token a generation is attempted again, with its own prompt; after it, it goes on with all its tokens so
far as prompt (`cluster.output.resume`). Whoever reads the stream sees neither: the same deltas, no seam, the cached
tokens that the first replica found. Clients' errors and full clusters are passed on as they are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec
import xxhash

from cluster.output.resume import rest_of
from router.errors import NoReplica, Quarantined, ReplicaDied, ReplicaGone
from router.hashing import BYTES_PER_TOKEN
from router.quarantine import Quarantine
from router.retry import RetryBudget, Tenacity
from workers.engine import TokenDelta

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from cluster.backend import Backend, Health, Job, Routed, TokenStream
    from router.policy import Score

logger = logging.getLogger("ray.serve")

BROKEN: Final = frozenset({"error", "abort"})  # what an engine calls a generation that it gave up
_encode: Final = msgspec.msgpack.Encoder().encode


class DurableBackend:
    """Implements `cluster.backend.Backend` over one whose streams end with their replicas. `clock` is monotonic."""

    def __init__(self, backend: Backend, *, tenacity: Tenacity, clock: Callable[[], float]) -> None:
        self.backend = backend
        self.tenacity = tenacity
        self.clock = clock
        self.budget = RetryBudget()
        self.quarantine = Quarantine()

    def __repr__(self) -> str:
        return f"<DurableBackend {self.budget!r} {self.quarantine!r}>"

    def start(self, job: Job, *, exclude: frozenset[str] = frozenset()) -> DurableStream:
        """See `Backend`. Raises `Quarantined` for a request over which replicas died."""
        if len(self.quarantine) and self.quarantine.bars(fingerprint_of(job), self.clock()):
            raise Quarantined("replicas died over this request a moment ago")
        return DurableStream(self, job, self.backend.start(job, exclude=exclude))

    def preview(self, job: Job) -> tuple[Score, ...]:
        """See `Backend`."""
        return self.backend.preview(job)

    def health(self) -> Health:
        """See `Backend`."""
        return self.backend.health()


class DurableStream:
    """Implements `cluster.backend.TokenStream` over one attempt after the other. Close it, however it ends."""

    def __init__(self, durable: DurableBackend, job: Job, attempt: TokenStream) -> None:
        self._durable = durable
        self._job = job
        self._attempt = attempt
        self._tokens = bytearray()
        self._failed_on: list[str] = []
        self._retries = 0
        self._resumes = 0
        self._is_open = True
        durable.budget.started()
        self._deltas = self._run()

    @property
    def routed(self) -> Routed | None:
        """The choice of the attempt that runs, and what came before it."""
        routed = self._attempt.routed
        if routed is None or not self._failed_on:
            return routed
        return msgspec.structs.replace(
            routed, retries=self._retries, resumes=self._resumes, failed_on=tuple(self._failed_on)
        )

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        return self._deltas

    async def aclose(self) -> None:
        """Abort what runs."""
        if self._is_open:
            self._is_open = False
            self._durable.budget.ended(self._durable.clock())
        await self._attempt.aclose()
        await self._deltas.aclose()

    async def _run(self) -> AsyncGenerator[TokenDelta, None]:
        while True:
            try:
                async for delta in self._attempt:
                    if delta.finish_reason in BROKEN:
                        if delta.tokens:  # from before the fault, joined on the way
                            yield self._noted(msgspec.structs.replace(delta, finish_reason=None))
                        raise ReplicaDied(f"the engine ended the generation: {delta.finish_reason}")  # noqa: TRY301
                    yield self._noted(delta)
                    if delta.finish_reason is not None:
                        return
                raise ReplicaDied("the stream ended without a finish reason")  # noqa: TRY301
            except ReplicaDied as died:
                fault = died
            await self._attempt.aclose()
            rest = self._rest(fault)
            if rest is None:
                yield TokenDelta(finish_reason="length")
                return
            self._attempt = self._next(rest, fault)

    def _noted(self, delta: TokenDelta) -> TokenDelta:
        self._tokens += delta.tokens
        if self._resumes and delta.cached_tokens is not None:
            return msgspec.structs.replace(delta, cached_tokens=None)  # it counts tokens that are no prompt
        return delta

    def _rest(self, fault: ReplicaDied) -> Job | None:
        """What the next attempt is asked for; None when all is there. Raises `fault` when there may be no further one,
        `CutShort` or `Quarantined` when that is why."""
        self._blame(fault)
        made_tokens = len(self._tokens) // BYTES_PER_TOKEN
        if not made_tokens:
            self._permit(fault, self._retries, self._durable.tenacity.retries)
            return self._job
        sampling = rest_of(self._job.sampling, made_tokens=made_tokens)
        if sampling is None:
            return None
        self._permit(fault, self._resumes, self._durable.tenacity.resumes)
        tokens = self._job.tokens + bytes(self._tokens)
        return msgspec.structs.replace(self._job, tokens=tokens, sampling=sampling, resumed_tokens=made_tokens)

    def _blame(self, fault: ReplicaDied) -> None:
        """Remember which replica failed, and over what it died."""
        routed, durable = self._attempt.routed, self._durable
        replica = "" if routed is None else routed.replica
        self._failed_on.append(replica)
        if isinstance(fault, ReplicaGone):
            durable.quarantine.note(fingerprint_of(self._job), replica, durable.clock())

    def _permit(self, fault: ReplicaDied, used: int, limit: int) -> None:
        """Raise unless there may be one more attempt, which then counts."""
        durable, now = self._durable, self._durable.clock()
        is_gone = isinstance(fault, ReplicaGone)
        if is_gone and durable.quarantine.bars(fingerprint_of(self._job), now):
            raise Quarantined("replicas died over this request, one after the other") from fault
        if used >= limit or not (is_gone or durable.budget.take(now)):
            raise fault

    def _next(self, job: Job, fault: ReplicaDied) -> TokenStream:
        try:
            attempt = self._durable.backend.start(job, exclude=frozenset(self._failed_on))
        except NoReplica:
            raise fault from None
        self._resumes += bool(job.resumed_tokens)
        self._retries += not job.resumed_tokens
        logger.warning(
            "request %s goes on elsewhere after %d tokens: %s: %s",
            job.request_id, job.resumed_tokens, self._failed_on[-1], fault,
        )  # fmt: skip
        return attempt


def fingerprint_of(job: Job) -> int:
    """The same for the same wish of the same tenant in the same session. O(prompt)."""
    wish = _encode((job.tenant.id, job.session, job.model, job.sampling))
    return xxhash.xxh3_64_intdigest(job.tokens, xxhash.xxh3_64_intdigest(wish))
