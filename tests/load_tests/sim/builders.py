"""Small things that tests of the simulator are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from load_tests.sim.cluster import ClusterPlan, ReplicaPlan
from load_tests.sim.engine import Engine, Job
from load_tests.sim.pool import packed_of
from load_tests.sim.work import Run, SimRequest, Workload
from workers.simulator import SimParameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.sim.placing import Asked, Held, ReplicaSpec

BLOCK = 4


def parameters(**given: Any) -> SimParameters:
    """An engine with blocks of 4 tokens whose steps of at most 16 tokens take a second, whatever is in them."""
    pace = {"step_s": 1.0, "prefill_token_s": 0.0, "decode_s": 0.0}
    return SimParameters(**{"block_size": BLOCK, "pool_blocks": 64, "max_batched_tokens": 16, **pace, **given})


def cluster(replicas: int = 2, *, front_s: float = 0.0, **given: Any) -> ClusterPlan:
    """So many of them."""
    return ClusterPlan(tuple(ReplicaPlan(f"r{index}", parameters(**given)) for index in range(replicas)), front_s)


def job(request: int, hashes: Sequence[int], *, output_tokens: int = 1) -> Job:
    """A prompt of whole blocks and one token more; the answer's blocks are the request's own."""
    prompt_tokens = len(hashes) * BLOCK + 1
    filled = (prompt_tokens + output_tokens - 1) // BLOCK
    every = [*hashes, *range(1000 * (request + 1), 1000 * (request + 1) + filled - len(hashes))]
    return Job(request, prompt_tokens, output_tokens, every, packed_of(every))


def request(session: str, first: int, blocks: int, *, output_tokens: int = 1, **given: Any) -> SimRequest:
    """A prompt of so many blocks in a row and one token more."""
    filled = (blocks * BLOCK + output_tokens) // BLOCK
    return SimRequest(session, 0, blocks * BLOCK + 1, output_tokens, (Run(first, filled),), **given)


def workload(*requests: SimRequest) -> Workload:
    """In this order."""
    return Workload("test", BLOCK, requests)


def finish(engine: Engine, now: float = 0.0) -> list[Any]:
    """All that comes of what an engine was given, with its times."""
    told: list[Any] = []
    for end in engine.advance(now):
        told.append(end)
    while (due_at := engine.due_at) is not None:
        told += engine.advance(due_at)
        engine.check_integrity()
    return told


class InTurn:
    """A placing that deals requests out in the order in which replicas joined, and notes all that it is told."""

    def __init__(self, *answers: str | Held) -> None:
        self.replicas: list[str] = []
        self.told: list[tuple[Any, ...]] = []
        self._answers = list(answers)
        self._turn = 0

    def join(self, replica: ReplicaSpec, now: float) -> None:
        self.replicas.append(replica.name)
        self.told.append(("join", replica.name, now))

    def leave(self, replica: str, now: float) -> None:
        self.replicas.remove(replica)
        self.told.append(("leave", replica, now))

    def on_frame(self, replica: str, frame: bytes, now: float) -> None:
        self.told.append(("frame", replica, frame, now))

    def place(self, asked: Asked, now: float) -> str | Held:
        self.told.append(("place", asked.request, now))
        if self._answers:
            return self._answers.pop(0)
        self._turn += 1
        return self.replicas[self._turn % len(self.replicas)]

    def first_token(self, request: int, *, cached_tokens: int, now: float) -> None:
        self.told.append(("first token", request, cached_tokens, now))

    def finish(self, request: int, now: float) -> None:
        self.told.append(("finish", request, now))
