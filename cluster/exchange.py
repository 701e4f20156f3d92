"""One request and its response, the same for every protocol, to exactly one outcome."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from xxhash import xxh3_128

from cluster.api.hints import betas_of, session_of
from cluster.api.outcomes import OnceOnly, Report, outcome_of, words_of
from cluster.api.responses import resumed
from cluster.asgi import REQUEST_ID_KEY, ClientGoneError, EventStream, headers_of, read_body, send_json, while_connected
from cluster.prompt.threads import Turns
from cluster.prompt.warm_path import Written
from router.errors import ClientError
from router.hashing import BYTES_PER_TOKEN
from router.limits import FLUSH_MS, INLINE_BODY_BYTES, MAX_HINT_CHARS, PING_INTERVAL_S, WARM_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from starlette.types import Receive, Scope, Send

    from cluster.api.dialect import Dialect, Reply
    from cluster.api.outline import Outline
    from cluster.api.response_memory import ResponseMemory
    from cluster.backend import Backend
    from cluster.model_names import ModelNames
    from cluster.models.served import ServedModel
    from cluster.prompt.conversation import Change, Conversation
    from cluster.prompt.warm_path import Asked, Prefix
    from cluster.tenants import Tenant, Tenants

log = logging.getLogger(__name__)
Given = TypeVar("Given")
Made = TypeVar("Made")


class Pacing(NamedTuple):
    """Of streams: the longest silence before a ping, and how far apart events leave that can wait."""

    ping_interval_s: float = PING_INTERVAL_S
    flush_ms: float = FLUSH_MS


PACING: Final = Pacing()


class Services(NamedTuple):
    """What every request needs; see `cluster.ingress.build_app`. `clock` is monotonic seconds."""

    models: ModelNames
    backend: Backend
    tenants: Tenants
    responses: ResponseMemory
    on_outcome: Callable[[Report], None]
    clock: Callable[[], float]
    pacing: Pacing


class Prepared(NamedTuple):
    """A request ready for a replica."""

    parsed: Conversation  # as the client means it, with what it continues
    conversation: Conversation  # canonical
    model: ServedModel
    tenant: Tenant
    prompts: tuple[bytes, ...]  # packed u32; several only of Completions
    past: xxh3_128  # of what the conversation says, for `ExactTurns`
    prefix: Prefix | None = None  # the part of the prompt that was known, or is from now on

    @property
    def prompt_tokens(self) -> int:
        """Length of all prompts together."""
        return sum(map(len, self.prompts)) // BYTES_PER_TOKEN


class Stages:
    """Times of one request, for the `server-timing` header and for operators."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.started_s = self._last_s = clock()
        self.durations_s: dict[str, float] = {}

    def done(self, stage: str) -> None:
        """`stage` took from the last call until now."""
        now = self._clock()
        self.durations_s[stage] = now - self._last_s
        self._last_s = now

    def split(self, stage: str, part: str, duration_s: float) -> None:
        """Of what the last `stage` took, this much was another one."""
        whole_s = self.durations_s.pop(stage)
        self.durations_s |= {part: duration_s, stage: max(0.0, whole_s - duration_s)}

    def note(self, stage: str, duration_s: float) -> None:
        """A stage that somebody else timed."""
        self.durations_s[stage] = duration_s

    def since_start(self) -> float:
        """Seconds since the request came."""
        return self._clock() - self.started_s

    def header(self, *, ttft_s: float | None) -> str:
        """What is known so far, in milliseconds; of a request that came to nothing, all it took."""
        known = self.durations_s | ({} if ttft_s is None else {"ttft": ttft_s}) or {"total": self.since_start()}
        return ", ".join(f"{stage};dur={duration_s * 1e3:.3f}" for stage, duration_s in known.items())


class Exchange:
    """What one request has come to so far. `complete` once the last byte of an answer is on its way."""

    def __init__(self, services: Services, dialect: Dialect, scope: Scope, send: Send) -> None:
        self.services = services
        self.dialect = dialect
        self.id: str = scope[REQUEST_ID_KEY]
        self._headers = headers_of(scope)
        self._send = send
        self.stages = Stages(services.clock)
        self.report = Report(request_id=f"req_{self.id}", api=dialect.api)
        self.events = EventStream(send)
        self.reply: Reply | None = None
        self.complete = False
        self._end = OnceOnly(services.on_outcome)

    async def prepare(self, tenant: Tenant, body: bytes) -> Prepared:
        """Parsed, canonical, rendered, encoded: what is new of a known conversation, else the whole, in threads where
        it is large. Raises `ClientError`."""
        asked, prepared = None, None
        if self.dialect.outline is not None and len(body) <= WARM_BODY_BYTES:
            asked, prepared = self._grown(tenant, body, self.dialect.outline)
        if prepared is None:
            prepared = await self._read(tenant, body, asked)
        self.report.prompt_tokens = prepared.prompt_tokens
        self.services.tenants.quotas.spend(tenant, prepared.prompt_tokens, self.services.clock())
        return prepared

    def _grown(
        self, tenant: Tenant, body: bytes, outline_of: Callable[[bytes], Outline]
    ) -> tuple[Asked | None, Prepared | None]:
        """A known conversation's next request; else how it is asked for, when it may become one."""
        asked = None
        try:
            outline = outline_of(body)
            model = self.services.models.find(outline.model)
            asked = model.asked(outline, tenant.id)
            found = model.grown(asked, outline, self.stages.done)
        except ClientError:
            return asked, None  # whoever reads it all says why
        if found is None:
            return asked, None
        tail, grown = found
        self.stages.done("tokenize")
        self._tell(tail, model, grown.changes)
        self.report.spliced_turns, self.report.written_turns = grown.turns
        self.report.warm = True
        return asked, Prepared(tail, grown.conversation, model, tenant, (grown.tokens,), grown.past, grown.prefix)

    async def _read(self, tenant: Tenant, body: bytes, asked: Asked | None) -> Prepared:
        stages, report = self.stages, self.report
        read = await _run(self.dialect.parse, body, size_bytes=len(body))
        parsed = resumed(read, self.services.responses, tenant.id)
        stages.done("parse")
        self._tell(parsed, None, ())
        model = self.services.models.find(parsed.model)
        conversation, changes = await _run(model.canonical, parsed, size_bytes=len(body))
        self._tell(parsed, model, changes)
        stages.done("canonical")
        if conversation.prompts:
            stages.done("template")
            prompts = [await model.raw_tokens(given) for given in conversation.prompts]
            stages.done("tokenize")
            return Prepared(parsed, conversation, model, tenant, tuple(prompts), xxh3_128())
        draft = await model.draft(conversation, tenant.id)
        stages.done("template")
        tokens, report.spliced_turns = await model.encode(draft)
        report.written_turns = draft.past_turns - report.spliced_turns
        prefix = None
        if asked is not None and model.warm_path is not None:
            made = Written(tokens, Turns(report.spliced_turns, report.written_turns))
            prefix = model.warm_path.keep(asked, parsed, conversation, made)
        stages.done("tokenize")
        return Prepared(parsed, conversation, model, tenant, (tokens,), draft.past, prefix)

    def _tell(self, parsed: Conversation, model: ServedModel | None, changes: tuple[Change, ...]) -> None:
        """What the report should know, as soon as it is known."""
        report = self.report
        report.ignored, report.model = parsed.hints.ignored, parsed.model if model is None else model.name
        report.session, report.betas = session_of(self._headers, parsed), betas_of(self._headers)
        report.client = self._headers.get("user-agent", "")[:MAX_HINT_CHARS]
        report.changes = changes

    async def run(
        self, receive: Receive, respond: Callable[[Exchange, Tenant, bytes], Coroutine[Any, Any, None]]
    ) -> None:
        """Authenticate, read, respond, and end in one outcome whatever happens. Only cancellation passes through."""
        try:
            tenant = self._authenticate()  # strangers are not read
            with self._counted(tenant):
                body = await read_body(receive)
                await while_connected(receive, respond(self, tenant, body))
            self.report.outcome = "completed"
        except ClientGoneError:
            self.report.outcome = "completed" if self.complete else "cancelled"
        except Exception as error:  # noqa: BLE001 - the edge: nothing but the table's words leaves
            await self._fail(error)
        except BaseException:
            self.report.outcome = "cancelled"
            raise
        finally:
            self.report.duration_s = self.stages.since_start()
            self.report.stages_s = self.stages.durations_s
            self._end(self.report)

    def headers(self) -> dict[str, str]:
        """What the owner of a request may know of its way."""
        report = self.report
        fields = {"server-timing": self.stages.header(ttft_s=report.ttft_s)}
        if report.replica:
            fields["x-kvist-replica"] = report.replica
            fields["x-kvist-predicted-cached-tokens"] = str(report.predicted_cached_tokens)
        return fields

    async def send_json(self, body: dict[str, Any]) -> None:
        """The whole answer."""
        self.report.status = 200
        self.complete = True
        await send_json(self._send, body, headers=self.headers())

    async def end_events(self, last: bytes) -> None:
        """The last events of an answer, and the end of the response."""
        self.complete = True
        await self.events.end(last)

    def _authenticate(self) -> Tenant:
        tenant = self.services.tenants.authenticate(
            api_key=self._headers.get("x-api-key", ""), authorization=self._headers.get("authorization", "")
        )
        self.report.tenant = tenant.id
        return tenant

    @contextlib.contextmanager
    def _counted(self, tenant: Tenant) -> Iterator[None]:
        quotas = self.services.tenants.quotas
        quotas.enter(tenant, self.services.clock())
        try:
            yield
        finally:
            quotas.leave(tenant)

    async def _fail(self, error: Exception) -> None:
        self.report.outcome, self.report.error = outcome_of(error), words_of(error)
        if self.report.outcome == "failed_internal":
            log.error("request %s failed", self.report.request_id, exc_info=error)
        if self.events.started and self.reply is not None:
            await self.end_events(self.reply.error(error))
            return
        status, headers, body = self.dialect.error(error, self.report.request_id)
        self.report.status = status
        await send_json(self._send, body, status=status, headers={**self.headers(), **headers})


async def _run(function: Callable[[Given], Made], given: Given, *, size_bytes: int) -> Made:
    """`function(given)`, in a thread when it would hold up everybody else for longer than the way there takes."""
    if size_bytes <= INLINE_BODY_BYTES:
        return function(given)
    return await asyncio.to_thread(function, given)
