"""What a rule of choice is asked and told in a simulation: Kvist's own router and every baseline stand behind this."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class ReplicaSpec(NamedTuple):
    """One simulated replica. `step_tokens` is the token budget of an engine step, `share_tokens` the most that one
    prompt takes of it (0: all of it, first come first served)."""

    name: str
    block_size: int
    pool_blocks: int
    step_tokens: int
    share_tokens: int


class Asked(NamedTuple):
    """One request to place. `hashes` are those of all full blocks of its prompt, for the trace's block size. `session`
    is the client's own name of the conversation; `turn` counts its requests from 0."""

    request: int
    session: str
    turn: int
    prompt_tokens: int
    hashes: Sequence[int]


class Held(NamedTuple):
    """Not now: ask again at this time, in seconds of the simulation."""

    again_at: float


class Placing(Protocol):
    """A rule of choice with its own memory, told what a router is told and no more. Confined to one thread; `now` never
    decreases. Deterministic for a given seed: randomness comes in with the constructor."""

    def join(self, replica: ReplicaSpec, now: float) -> None:
        """A replica exists; its pool is empty."""

    def leave(self, replica: str, now: float) -> None:
        """A replica is gone, with its blocks and its requests."""

    def on_frame(self, replica: str, frame: bytes, now: float) -> None:
        """An event frame as `router.wire` writes it, late as events are: blocks stored and removed, and the gauge."""

    def place(self, asked: Asked, now: float) -> str | Held:
        """Choose a known replica and count the request there, or hold it. Called again with the same `asked` after a
        hold, or when its replica left before the first token."""

    def first_token(self, request: int, *, cached_tokens: int, now: float) -> None:
        """The engine found so many tokens of the prompt in its cache and has computed the others."""

    def finish(self, request: int, now: float) -> None:
        """The request has ended. Called once for each placed request that did not lose its replica."""
