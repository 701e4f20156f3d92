"""Small workloads and clusters for the situations that a router must do well in, each by its name."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from load_tests.sim.cluster import Absence, ClusterPlan
from load_tests.sim.work import After, Run, SimRequest, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_TOKENS: Final = 64
SYSTEM_PROMPT_TOKENS: Final = 5_120  # 20 KB of text
ANSWER_TOKEN_S: Final = 0.03  # an idle replica's pace


class Thread(NamedTuple):
    """Where a conversation stands: its last request, and all blocks up to the end of its answer."""

    session: str
    request: int
    runs: tuple[Run, ...]


class Scene:
    """A workload in the making: conversations that open, go on, fork and join. Ids are never used twice."""

    def __init__(self, name: str, *, block_size: int = BLOCK_TOKENS) -> None:
        self._name = name
        self._block_size = block_size
        self._requests: list[SimRequest] = []
        self._turns: Counter[str] = Counter()
        self._next_block = 1

    def fresh(self, tokens: int) -> tuple[Run, ...]:
        """The full blocks of so many new tokens."""
        blocks = tokens // self._block_size
        run = Run(self._next_block, blocks)
        self._next_block += blocks
        return (run,) if blocks else ()

    def ask(
        self, session: str, prefix: Sequence[Run], tokens: tuple[int, int], when: float | Sequence[After]
    ) -> Thread:
        """A request whose prompt is known blocks, whole blocks of new tokens and one token more. `tokens` are new ones
        of the prompt and those of the answer; `when` is a time or what it waits for."""
        new_tokens, output_tokens = tokens
        at, after = (when, ()) if isinstance(when, float) else (0.0, tuple(when))
        prompt = (*prefix, *self.fresh(new_tokens))
        prompt_tokens = sum(run.blocks for run in prompt) * self._block_size + 1
        runs = (*prompt, *self.fresh(output_tokens))
        seen_at = max([at, *[self._requests[dep.request].left_at + dep.gap_s for dep in after]])
        left_at = seen_at + ANSWER_TOKEN_S * output_tokens
        turn = self._turns[session]
        self._turns[session] += 1
        self._requests.append(
            SimRequest(session, turn, prompt_tokens, output_tokens, runs, at, after, seen_at, left_at)
        )
        return Thread(session, len(self._requests) - 1, runs)

    def go_on(self, thread: Thread, tokens: tuple[int, int], *, think_s: float) -> Thread:
        """The next turn, some time after the last answer."""
        return self.ask(thread.session, thread.runs, tokens, [After(thread.request, think_s)])

    def workload(self) -> Workload:
        """All of it, in the order in which idle replicas would see it."""
        order = sorted(range(len(self._requests)), key=lambda at: (self._requests[at].seen_at, at))
        place = {at: new for new, at in enumerate(order)}
        requests = [
            request._replace(after=tuple([After(place[dep.request], dep.gap_s) for dep in request.after]))
            for request in (self._requests[at] for at in order)
        ]
        return Workload(self._name, self._block_size, tuple(requests))


def cold_burst(
    *, siblings: int = 24, shared_tokens: int = 20_000, own_tokens: int = 500, burst_s: float = 0.2
) -> Workload:
    """Nobody has seen the prefix that many requests bring at nearly the same time."""
    scene = Scene("cold burst")
    shared = scene.fresh(shared_tokens)
    for number in range(siblings):
        scene.ask(f"s{number}", shared, (own_tokens, 64), burst_s * number / siblings)
    return scene.workload()


def hot_prefix(
    *, sessions: int = 64, turns: int = 3, at_once: int = 36, shared_tokens: int = SYSTEM_PROMPT_TOKENS, seed: int = 0
) -> Workload:
    """One system prompt for all; so many sessions at a time, the next one begins when one of them ends."""
    scene, random = Scene("hot prefix"), Random(seed)
    shared = scene.fresh(shared_tokens)
    ended: list[Thread] = []
    for first in range(0, sessions, at_once):
        wave = []
        for number in range(first, min(first + at_once, sessions)):
            pause_s = random.uniform(0.1, 1.0)
            when = [After(ended[number - at_once].request, pause_s)] if number >= at_once else pause_s
            wave.append(scene.ask(f"s{number}", shared, (random.randrange(64, 320), 64), when))
        for _ in range(turns - 1):
            wave = [
                scene.go_on(thread, (random.randrange(64, 256), 64), think_s=random.uniform(0.5, 3.0))
                for thread in wave
            ]
        ended += wave
    return scene.workload()


def sibling_forks(
    *, families: int = 24, siblings: int = 6, parent_tokens: int = 30_000, shared_tokens: int = 10_000, seed: int = 0
) -> Workload:
    """A parent's answer starts six sub-agents at once. They share its context and a head of their own that nobody has
    seen before; the parent goes on when all have ended."""
    scene, random = Scene("fork of siblings"), Random(seed)
    for family in range(families):
        parent = scene.ask(f"f{family}", (), (parent_tokens, 128), random.uniform(0.0, 10.0 * families))
        forked, shared = [After(parent.request, 0.5)], (*parent.runs, *scene.fresh(shared_tokens))
        children = [scene.ask(parent.session, shared, (500, 96), forked) for _ in range(siblings)]
        children = [scene.go_on(child, (400, 64), think_s=2.0) for child in children]
        scene.ask(parent.session, parent.runs, (1_500, 128), [After(child.request, 1.0) for child in children])
    return scene.workload()


def joining_empty(cluster: ClusterPlan, *, joins_at: float) -> ClusterPlan:
    """The last replica is not there before that time."""
    return absent(cluster, -1, Absence(0.0, joins_at))


def absent(cluster: ClusterPlan, replica: int, *absences: Absence) -> ClusterPlan:
    """One replica is lost for a while; what it had to do is placed again."""
    replicas = list(cluster.replicas)
    replicas[replica] = replicas[replica]._replace(absences=absences)
    return cluster._replace(replicas=tuple(replicas))


def slow_replica(cluster: ClusterPlan, *, replica: int = 0, speed: float = 0.5) -> ClusterPlan:
    """One replica takes `1 / speed` times as long for everything."""
    replicas = list(cluster.replicas)
    replicas[replica] = replicas[replica]._replace(speed=speed)
    return cluster._replace(replicas=tuple(replicas))
