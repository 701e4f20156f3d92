"""Conversations that grow turn by turn over a few shared beginnings, each turn placed by a router's own choice."""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Final

from router.fleet import PromptBlocks
from router.hashing import block_hashes, seed_of
from tests.simulation.world import MODEL, require
from workers.engine import Generation, Sampling

if TYPE_CHECKING:
    from router.fleet import Decision
    from tests.simulation.replica import SimReplica
    from tests.simulation.router import SimRouter
    from tests.simulation.world import World
    from workers.simulator import SimDelta

LONGEST_PROMPT_TOKENS: Final = 150
TURNS_PER_REPLICA_S: Final = 0.1
SALTS: Final = ("", "", "tenant")


class Conversation:
    """`tokens` so far, the reply of the last turn included."""

    def __init__(self, salt: str, tokens: list[int]) -> None:
        self.salt = salt
        self.tokens = tokens


class Request:
    """One turn on its way. `expected_cached_tokens` is set when the router knew all there was to know."""

    def __init__(self, world: World, router: SimRouter, conversation: Conversation, generation: Generation) -> None:
        self.generation = generation
        self.is_over = False
        self.expected_cached_tokens: int | None = None
        self.output: list[int] = []
        self.replica: SimReplica
        self.reservation = 0
        self._world = world
        self._router = router
        self._fleet = router.fleet
        self._conversation = conversation

    def on_delta(self, delta: SimDelta) -> None:
        """One more token, and maybe the end. Until an engine has heard that its client is gone, it goes on."""
        if self.is_over:
            self.output.append(delta.token)
            return
        if not self.output:
            self._check_prediction(delta.cached_tokens)
            self._router.soon(self._first_token, delta.cached_tokens)
        self.output.append(delta.token)
        if delta.finish_reason:
            prompt = array("I", self.generation.tokens)
            self._conversation.tokens = [*prompt, *self.output]
            self._end("finished")

    def fail(self) -> None:
        """Its replica is gone."""
        self._end("failed")

    def cancel(self) -> None:
        """The client is gone."""
        if not self.is_over:
            self.replica.cancel(self)
            self._end("cancelled")

    def forget(self) -> None:
        """Its replica has no more to do with it."""
        self.replica.requests.pop(self.generation.request_id, None)
        self.replica.names.learn(self._token_bytes(), self.generation.cache_salt)

    def _check_prediction(self, cached_tokens: int) -> None:
        if self.expected_cached_tokens is not None:
            self._world.events["predictions_checked"] += 1
            require(
                self.expected_cached_tokens == cached_tokens,
                f"{cached_tokens} cached tokens, {self.expected_cached_tokens} predicted by a router that knew all",
            )

    def _token_bytes(self) -> bytes:
        """All tokens that the engine may have computed."""
        return self.generation.tokens + array("I", self.output).tobytes()

    def _end(self, outcome: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._world.events[f"requests_{outcome}"] += 1
        if outcome != "cancelled":
            self.forget()
        self._router.soon(self._finish)

    def _first_token(self, cached_tokens: int) -> None:
        if self._fleet is self._router.fleet:
            self._fleet.first_token(self.reservation, cached_tokens, self._world.clock.now)
            self._router.check_loads(self.replica.name)

    def _finish(self) -> None:
        if self._fleet is self._router.fleet:
            for _ in range(2):  # ends may be told twice
                self._fleet.finish(self.reservation, self._world.clock.now)
            self._router.check_loads(self.replica.name)


class Workload:
    """Turns come at random times while it `runs`; `open` are those not yet over."""

    def __init__(self, world: World, routers: list[SimRouter], replicas: list[SimReplica]) -> None:
        self.runs = False
        self._world = world
        self._routers = routers
        self._replicas = replicas
        self._requests = 0
        self._beginnings = [self._words(16, 48) for _ in range(4)]
        self._conversations = [self._conversation() for _ in range(3 * len(replicas))]

    def start(self) -> None:
        self.runs = True
        self._next()

    def _next(self) -> None:
        if not self.runs:
            return
        self._turn()
        rate = TURNS_PER_REPLICA_S * len(self._replicas)
        self._world.clock.at(self._world.clock.now + self._world.rng.expovariate(rate), self._next)

    def _turn(self) -> None:
        rng = self._world.rng
        at = rng.randrange(len(self._conversations))
        one = self._conversations[at]
        kind = rng.random()
        if kind < 0.7:  # else the same prompt again
            one.tokens = one.tokens + self._words(1, 13)
            if kind < 0.2:  # to the last block's end
                one.tokens += self._words(1, 1) * (-len(one.tokens) % 8)
        if len(one.tokens) > LONGEST_PROMPT_TOKENS:
            one = self._conversations[at] = self._conversation()
        siblings = rng.randint(2, 5) if rng.random() < 0.15 else 1
        target: SimReplica | None = None
        for _ in range(siblings):
            placed = self._send(one, target)
            target = placed if rng.random() < 0.7 else None

    def _conversation(self) -> Conversation:
        rng = self._world.rng
        return Conversation(rng.choice(SALTS), rng.choice(self._beginnings) + self._words(1, 20))

    def _words(self, low: int, high: int) -> list[int]:
        rng = self._world.rng
        return [rng.randrange(256) for _ in range(rng.randint(low, high))]

    def _send(self, conversation: Conversation, target: SimReplica | None) -> SimReplica | None:
        """Choose and submit; with a target, Serve sends it there instead."""
        world, rng = self._world, self._world.rng
        router = rng.choice(self._routers)
        if router.is_paused:
            return None
        tokens = struct.pack(f"<{len(conversation.tokens)}I", *conversation.tokens)
        seed = seed_of(MODEL, salt=conversation.salt)
        sizes = router.fleet.block_sizes
        prompt = PromptBlocks(
            len(conversation.tokens), {size: block_hashes(tokens, block_size=size, seed=seed) for size in sizes}
        )
        decision = router.choose(prompt)
        if decision is None:
            world.events["no_replica"] += 1
            return None
        self._requests += 1
        generation = Generation(
            request_id=str(self._requests),
            tokens=tokens,
            sampling=Sampling(max_tokens=rng.randint(1, 8), temperature=0.0),
            cache_salt=conversation.salt,
        )
        request = Request(world, router, conversation, generation)
        self._place(request, router, decision, target)
        if rng.random() < 0.1:
            world.clock.at(world.clock.now + rng.uniform(0, 0.3), request.cancel)
        return request.replica

    def _place(self, request: Request, router: SimRouter, decision: Decision, target: SimReplica | None) -> None:
        best = router.links[decision.candidates[0]].replica
        world, replica = self._world, target or best
        world.note(world.clock.now, replica.name, decision.predicted_cached_tokens)
        if decision.predicted_cached_tokens:
            world.events["warm_choices"] += 1
        request.replica, request.reservation = replica, decision.reservation
        if replica is not best:
            router.fleet.moved(request.reservation, replica.name, world.clock.now)
            router.check_loads(replica.name)
        elif replica.is_idle and replica.knowledge == "exact" and router.is_current(replica):
            request.expected_cached_tokens = decision.predicted_cached_tokens
        replica.submit(request)
