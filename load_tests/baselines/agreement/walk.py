"""Random states of a cluster, as a walk: caches fill and are evicted, requests come, compute and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

REMEMBERED_PROMPTS: Final = 60
BLOCK_SIZES: Final = (16, 32, 64)


class Sizes(NamedTuple):
    """What a walk draws its own sizes from: replicas from 2 on, requests in flight on each, new blocks of a prompt."""

    most_replicas: int
    requests: tuple[int, ...]
    new_blocks: tuple[int, ...]


ALL_SIZES: Final = Sizes(16, (1, 3, 10), (3, 30, 200))
SMALL_SIZES: Final = Sizes(4, (3,), (3,))


class Prompt(NamedTuple):
    """Full blocks by their numbers, and the tokens after them."""

    blocks: tuple[int, ...]
    tail_tokens: int


class Stored(NamedTuple):
    """A replica caches these blocks after their parent (None: from the start)."""

    replica: int
    parent: int | None
    blocks: tuple[int, ...]


class Removed(NamedTuple):
    """A replica no longer caches these blocks, children first."""

    replica: int
    blocks: tuple[int, ...]


class Reserve(NamedTuple):
    """A request is to go to one of the allowed replicas."""

    request: int
    prompt: Prompt
    allowed: tuple[int, ...]


class Placed(NamedTuple):
    """A request went to this replica."""

    request: int
    prompt: Prompt
    replica: int


class FirstToken(NamedTuple):
    """A request's prompt is computed."""

    request: int


class Finish(NamedTuple):
    """A request has ended."""

    request: int


class Chosen(NamedTuple):
    """The replicas that were drawn for a prompt."""

    prompt: Prompt
    replicas: tuple[int, ...]


Action = Stored | Removed | Reserve | FirstToken | Finish
Told = Stored | Removed | Placed | FirstToken | Finish | Chosen
KINDS: Final = {
    "stored": Stored,
    "removed": Removed,
    "reserve": Reserve,
    "placed": Placed,
    "first_token": FirstToken,
    "finish": Finish,
    "chosen": Chosen,
}
NAMES: Final = {kind: name for name, kind in KINDS.items()}


def as_line(what: Action | Told) -> list[Any]:
    """Its name and its fields, for JSON."""
    return [NAMES[type(what)], *what]


def from_line(line: list[Any]) -> Told:
    """What `as_line` made a line of, after JSON."""
    name, *fields = line
    return msgspec.convert(fields, KINDS[name])


class Walk:
    """States of one cluster, each a few random actions after the one before.

    A block has one parent, so that prompts are paths of a forest. Caches are prefix-closed.
    """

    def __init__(self, rng: random.Random, sizes: Sizes = ALL_SIZES) -> None:
        self._rng = rng
        self.replicas = rng.randint(2, sizes.most_replicas)
        self.block_size = rng.choice(BLOCK_SIZES)
        self._most_requests = self.replicas * rng.choice(sizes.requests)
        self._most_new_blocks = rng.choice(sizes.new_blocks)
        self._parents: dict[int, int | None] = {}
        self._prompts: list[tuple[int, ...]] = []
        self._cached: list[dict[int, int]] = [{} for _ in range(self.replicas)]  # block → its cached children
        self._homes: dict[int, tuple[int, tuple[int, ...]]] = {}  # request → replica and blocks
        self._waiting: set[int] = set()  # requests before their first token
        self._requests = 0

    def prompt(self) -> Prompt:
        """A new prompt, or one that goes on from, or forks, an earlier one."""
        rng = self._rng
        head: tuple[int, ...] = ()
        if self._prompts and rng.random() < 0.85:
            known = rng.choice(self._prompts)
            head = known if rng.random() < 0.5 else known[: rng.randint(0, len(known))]
        new = range(len(self._parents) + 1, len(self._parents) + 1 + rng.randint(0, self._most_new_blocks))
        blocks = (*head, *new)
        for parent, block in zip((None, *blocks), blocks, strict=False):
            self._parents.setdefault(block, parent)
        self._prompts = [*self._prompts[-REMEMBERED_PROMPTS + 1 :], blocks]
        return Prompt(blocks, rng.randint(0 if blocks else 1, self.block_size - 1))

    def actions(self) -> Iterator[Action]:
        """What happens until the next state. Every `Reserve` must be answered by `placed` before the next action."""
        for _ in range(self._rng.choice((1, 2, 4, 8))):
            yield from self._action()

    def placed(self, placed: Placed) -> None:
        """Where a request went."""
        self._homes[placed.request] = (placed.replica, placed.prompt.blocks)
        self._waiting.add(placed.request)

    def _action(self) -> Iterator[Action]:
        rng = self._rng
        dice = rng.random()
        if dice < 0.45:
            if len(self._homes) < self._most_requests:
                yield self._reserve()
            elif self._homes:
                yield self._finish()
        elif dice < 0.7:
            if self._waiting:
                yield from self._first_token()
        elif dice < 0.8:
            if self._homes:
                yield self._finish()
        elif dice < 0.9:
            if self._prompts:
                known = rng.choice(self._prompts)
                yield from self._store(rng.randrange(self.replicas), known[: rng.randint(0, len(known))])
        else:
            yield from self._evict(rng.randrange(self.replicas))

    def _reserve(self) -> Reserve:
        self._requests += 1
        everyone = range(self.replicas)
        allowed = everyone if self._rng.random() < 0.3 else [self._rng.choice(everyone)]
        return Reserve(self._requests, self.prompt(), tuple(allowed))

    def _finish(self) -> Finish:
        request = self._rng.choice(sorted(self._homes))
        del self._homes[request]
        self._waiting.discard(request)
        return Finish(request)

    def _first_token(self) -> Iterator[Action]:
        """Usually the engine has cached the prompt by then, and its event has arrived."""
        request = self._rng.choice(sorted(self._waiting))
        self._waiting.discard(request)
        if self._rng.random() < 0.8:
            yield from self._store(*self._homes[request])
        yield FirstToken(request)

    def _store(self, replica: int, blocks: Sequence[int]) -> Iterator[Stored]:
        cached = self._cached[replica]
        first = next((place for place, block in enumerate(blocks) if block not in cached), len(blocks))
        for block in blocks[first:]:
            cached[block] = 0
            parent = self._parents[block]
            if parent is not None:
                cached[parent] += 1
        if blocks[first:]:
            yield Stored(replica, blocks[first - 1] if first else None, tuple(blocks[first:]))

    def _evict(self, replica: int) -> Iterator[Removed]:
        """Some leaves, from the end of one path."""
        cached = self._cached[replica]
        leaves = [block for block, children in cached.items() if not children]
        if not leaves:
            return
        block: int | None = self._rng.choice(leaves)
        removed: list[int] = []
        for _ in range(self._rng.choice((1, 10, 1_000))):
            if block is None or cached[block]:
                break
            del cached[block]
            removed.append(block)
            block = self._parents[block]
            if block is not None:
                cached[block] -= 1
        yield Removed(replica, tuple(removed))
