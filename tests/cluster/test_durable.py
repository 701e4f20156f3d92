"""A generation and its replicas: attempted again before its first token, resumed after it, never beyond the limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cluster.backend import Health, Job, Routed
from cluster.durable import DurableBackend, fingerprint_of
from cluster.tenants import Tenant
from router.errors import CutShort, InvalidRequest, NoReplica, Quarantined, ReplicaDied, ReplicaGone
from router.limits import MAX_RESUMES, MAX_RETRIES, QUARANTINE_S, RETRY_FLOOR
from router.retry import Tenacity
from tests.cluster.support import TENACITY, packed
from workers.engine import Sampling, TokenDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from router.policy import Score

pytestmark = pytest.mark.anyio

Act = TokenDelta | Exception | None
GONE, DIED = ReplicaGone("gone"), ReplicaDied("the engine failed")
PROMPT = packed([1, 2, 3])
DONE = TokenDelta(finish_reason="stop")


def delta(*tokens: int, cached: int | None = None, reason: Any = None) -> TokenDelta:
    return TokenDelta(tokens=packed(tokens), cached_tokens=cached, finish_reason=reason)


def job(**sampling: Any) -> Job:
    wish = Sampling(**{"max_tokens": 10, **sampling})
    return Job(request_id="r", model="m", tokens=PROMPT, sampling=wish, tenant=Tenant(id="t", salt=""))


class Attempt:
    """Says what it was given; an exception is raised, None waits for ever."""

    def __init__(self, acts: Sequence[Act], replica: str) -> None:
        self._acts = acts
        self.routed: Routed | None = Routed(replica=replica, predicted_cached_tokens=7)
        self.closed = 0

    async def __aiter__(self) -> AsyncIterator[TokenDelta]:
        for act in self._acts:
            if act is None:
                await asyncio.Event().wait()
            elif isinstance(act, Exception):
                raise act
            else:
                yield act

    async def aclose(self) -> None:
        self.closed += 1


class Replicas:
    """One attempt after the other, each on the next replica: `r0`, `r1`, …; then there is none."""

    def __init__(self, *attempts: Sequence[Any]) -> None:
        self._waiting = list(attempts)
        self.attempts: list[Attempt] = []
        self.jobs: list[Job] = []
        self.excluded: list[frozenset[str]] = []

    def start(self, job: Job, *, exclude: frozenset[str] = frozenset()) -> Attempt:
        if not self._waiting:
            raise NoReplica("none is left")
        attempt = Attempt(self._waiting.pop(0), f"r{len(self.attempts)}")
        self.attempts.append(attempt)
        self.jobs.append(job)
        self.excluded.append(exclude)
        return attempt

    def preview(self, job: Job) -> tuple[Score, ...]:
        return ()

    def health(self) -> Health:
        return Health(ready=True, warm=True, detail="")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def durable(replicas: Replicas, tenacity: Tenacity = TENACITY, clock: Clock | None = None) -> DurableBackend:
    return DurableBackend(replicas, tenacity=tenacity, clock=clock or Clock())


async def said(backend: DurableBackend, wish: Job | None = None) -> tuple[list[TokenDelta], Routed | None]:
    """All deltas and the last route; closed afterwards, with nothing left running."""
    stream = backend.start(wish or job())
    try:
        return [one async for one in stream], stream.routed
    finally:
        await stream.aclose()
        await stream.aclose()
        assert backend.budget.running == 0
        backend.budget.check_integrity()


def tokens_of(deltas: list[TokenDelta]) -> bytes:
    return b"".join([one.tokens for one in deltas])


@pytest.mark.parametrize("fault", [GONE, DIED, delta(reason="error"), delta(reason="abort"), DONE])
async def test_before_the_first_token_a_generation_is_attempted_again_elsewhere(fault: Act) -> None:
    """With its own prompt, not on the replica that failed; counted as the second replica counts. A generation that
    merely stops has not failed."""
    replicas = Replicas([fault], [delta(5, cached=2), DONE])
    deltas, routed = await said(durable(replicas))
    if fault is DONE:
        assert (len(replicas.attempts), deltas) == (1, [DONE])
        return
    assert deltas == [delta(5, cached=2), DONE]
    assert replicas.jobs == [job(), job()]
    assert replicas.excluded == [frozenset(), {"r0"}]
    assert replicas.attempts[0].closed
    assert routed == Routed(replica="r1", predicted_cached_tokens=7, retries=1, failed_on=("r0",))


@pytest.mark.parametrize("fault", [GONE, DIED, delta(reason="error"), delta(reason="abort")])
async def test_after_the_first_token_it_goes_on_with_all_tokens_so_far_as_prompt(fault: Act) -> None:
    """Nothing lost, nothing doubled; cached tokens are those of the first replica."""
    replicas = Replicas([delta(4, cached=2), delta(5, 6, cached=2), fault], [delta(7, cached=5), DONE])
    deltas, routed = await said(durable(replicas))
    assert tokens_of(deltas) == packed([4, 5, 6, 7])
    assert [one.cached_tokens for one in deltas] == [2, 2, None, None]
    wish = job(max_tokens=7)
    assert replicas.jobs[1] == msgspec.structs.replace(wish, tokens=packed([1, 2, 3, 4, 5, 6]), resumed_tokens=3)
    assert replicas.excluded == [frozenset(), {"r0"}]
    assert routed == Routed(replica="r1", predicted_cached_tokens=7, resumes=1, failed_on=("r0",))


async def test_tokens_that_come_with_an_engines_fault_were_said_before_it_and_are_kept() -> None:
    """Deltas are joined on their way to a slow reader."""
    replicas = Replicas([delta(4, 5, cached=1, reason="error")], [delta(6), DONE])
    deltas, _ = await said(durable(replicas))
    assert deltas == [delta(4, 5, cached=1), delta(6), DONE]
    assert replicas.jobs[1].resumed_tokens == 2


async def test_it_resumes_again_with_the_tokens_of_every_replica() -> None:
    replicas = Replicas([delta(4), DIED], [delta(5), DIED], [delta(6), DONE])
    deltas, routed = await said(durable(replicas), job(seed=3))
    assert tokens_of(deltas) == packed([4, 5, 6])
    assert [one.resumed_tokens for one in replicas.jobs] == [0, 1, 2]
    assert [one.sampling.max_tokens for one in replicas.jobs] == [10, 9, 8]
    assert len({one.sampling.seed for one in replicas.jobs}) == 3
    assert replicas.jobs[2].tokens == packed([1, 2, 3, 4, 5])
    assert routed is not None
    assert (routed.resumes, routed.failed_on) == (2, ("r0", "r1"))


async def test_max_retries_and_max_resumes_stop_a_generation_that_fails_everywhere() -> None:
    """MAX_RETRIES before the first token, MAX_RESUMES after it; the last fault is the answer."""
    unlucky = Replicas(*[[DIED]] * 9)
    with pytest.raises(ReplicaDied, match="the engine failed"):
        await said(durable(unlucky))
    assert len(unlucky.attempts) == 1 + MAX_RETRIES
    torn = Replicas(*[[delta(4), DIED]] * 9)
    with pytest.raises(ReplicaDied, match="the engine failed"):
        await said(durable(torn))
    assert len(torn.attempts) == 1 + MAX_RESUMES


@pytest.mark.parametrize("acts", [[GONE], [delta(4), GONE]], ids=["before the first token", "after it"])
async def test_without_retries_and_resumes_a_failure_is_a_failure(acts: list[Act]) -> None:
    """The negative control: what the two switches bring is lost without them."""
    rest: list[Act] = [delta(5), DONE]
    deltas, _ = await said(durable(Replicas(acts, rest)))
    assert tokens_of(deltas)[-4:] == packed([5])
    with pytest.raises(ReplicaGone):
        await said(durable(Replicas(acts, rest), Tenacity(retries=0, resumes=0)))


@pytest.mark.parametrize("fault", [InvalidRequest("no"), NoReplica("full"), ValueError("a bug")])
async def test_a_clients_error_a_full_cluster_and_a_bug_are_never_attempted_again(fault: Exception) -> None:
    for acts in ([fault], [delta(4), fault]):
        replicas = Replicas(acts, [DONE])
        with pytest.raises(type(fault)):
            await said(durable(replicas))
        assert len(replicas.attempts) == 1


async def test_with_no_other_replica_the_fault_itself_is_the_answer() -> None:
    with pytest.raises(ReplicaGone, match="gone"):
        await said(durable(Replicas([GONE])))


async def test_an_answer_with_all_its_tokens_needs_no_other_replica() -> None:
    """Its engine died before it could say so."""
    replicas = Replicas([delta(4), delta(5), GONE])
    deltas, _ = await said(durable(replicas), job(max_tokens=2))
    assert deltas[-1] == TokenDelta(finish_reason="length")
    assert tokens_of(deltas) == packed([4, 5])


@pytest.mark.parametrize("wish", [{"logprobs": 1}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}])
async def test_where_the_rest_could_differ_the_answer_ends_with_a_typed_error(wish: dict[str, Any]) -> None:
    """After its first token; before it nothing stands against another attempt."""
    torn = Replicas([delta(4), GONE], [DONE])
    with pytest.raises(CutShort):
        await said(durable(torn), job(**wish))
    assert len(torn.attempts) == 1
    deltas, _ = await said(durable(Replicas([GONE], [delta(4), DONE])), job(**wish))
    assert tokens_of(deltas) == packed([4])


async def test_an_engines_faults_draw_on_the_budget_and_the_death_of_a_replica_does_not() -> None:
    """A replica dies once, with all it runs; a faulty engine would be asked again and again."""
    faulty = durable(Replicas(*[[DIED]] * 100))
    for _ in range(10):
        with pytest.raises(ReplicaDied):
            await said(faulty)
    assert len(faulty.backend.attempts) == 10 + RETRY_FLOOR  # type: ignore[attr-defined]
    turns: list[list[Any]] = [[GONE], [delta(4), DONE]]
    deaths = durable(Replicas(*turns * 10))
    for number in range(10):
        await said(deaths, job(seed=number))
    assert len(deaths.backend.attempts) == 20  # type: ignore[attr-defined]


async def test_a_request_that_kills_is_refused_after_the_second_replica_and_others_are_not() -> None:
    """As poison that kills wherever it goes, at once or in the middle; after QUARANTINE_S it may be tried again."""
    clock = Clock()
    for acts in ([GONE], [delta(4), GONE]):
        replicas = Replicas(*[acts] * 2, [DONE], [DONE])
        backend = durable(replicas, clock=clock)
        with pytest.raises(Quarantined):
            await said(backend)
        assert len(replicas.attempts) == 2
        with pytest.raises(Quarantined):
            backend.start(job())
        assert (await said(backend, job(temperature=0.5)))[0] == [DONE]
        clock.now += QUARANTINE_S
        assert (await said(backend))[0] == [DONE]


def test_a_fingerprint_tells_tenants_sessions_prompts_and_wishes_apart() -> None:
    one = job()
    others = [
        msgspec.structs.replace(one, tokens=PROMPT + PROMPT),
        msgspec.structs.replace(one, session="s"),
        msgspec.structs.replace(one, tenant=Tenant(id="u", salt="")),
        job(max_tokens=9),
    ]
    assert len({fingerprint_of(each) for each in [one, *others]}) == 5
    assert fingerprint_of(msgspec.structs.replace(one, request_id="another")) == fingerprint_of(one)


@pytest.mark.parametrize("acts", [[[None]], [[delta(4), None]], [[GONE], [None]], [[delta(4), GONE], [None]]])
async def test_a_reader_that_leaves_ends_the_attempt_that_runs(acts: list[list[Any]]) -> None:
    """At any stage: before the first token, in the middle, on the second replica."""
    replicas = Replicas(*acts)
    backend = durable(replicas)
    stream = backend.start(job())

    async def read() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    while len(replicas.attempts) < len(acts):
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await stream.aclose()
    assert all(attempt.closed for attempt in replicas.attempts)
    assert backend.budget.running == 0


def test_what_is_no_generation_goes_straight_through() -> None:
    backend = durable(Replicas())
    assert backend.preview(job()) == ()
    assert backend.health().ready
    assert repr(backend) == "<DurableBackend <RetryBudget running=0 granted=0> <Quarantine suspects=0>>"
