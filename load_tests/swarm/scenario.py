"""What agents of a swarm do, as data: sessions of turns, pauses between them, sub-agents, requests cut short.

A session is the same on every run with the same settings, whoever plays it and whenever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from load_tests.bench.ingress_bodies import Head  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ask(msgspec.Struct, frozen=True, tag=True):
    """The user's words."""

    text: str


class ToolRound(msgspec.Struct, frozen=True, tag=True):
    """What a tool gave back: for the call that the last answer made, if it made one."""

    tool: str
    path: str
    result: str

    @property
    def title(self) -> str:
        """How a user tells of it when no call was made."""
        return f"Output of {self.tool} {self.path}:"


class Blocks(msgspec.Struct, frozen=True, tag=True):
    """A whole prompt by the ids of its blocks, run-length coded as (first, count); `tokens` of a trace, unscaled.

    The first `head_blocks` are the head of all prompts of the same `head`."""

    runs: tuple[tuple[int, int], ...]
    tokens: int
    head: str = ""
    head_blocks: int = 0


Content: TypeAlias = Ask | ToolRound | Blocks


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request, `think_s` after the answer before it, or after its last sub-agent is done.

    `said` stands for the answer where nobody waits for the real one. The client cuts the answer after `cut_after`
    pieces of it; with 0 before the first one, soon after sending."""

    content: Content
    think_s: float
    max_tokens: int
    said: str = ""
    cut_after: int | None = None
    branches: tuple[Branch, ...] = ()
    """Sub-agents that start with this turn's answer. The next turn waits for all of them."""


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-agent: it knows the conversation of its parent so far, and goes on by itself."""

    name: str
    turns: tuple[Turn, ...]
    delay_s: float = 0.0


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation from its first turn on. `due_s` is when a trace says that it starts."""

    number: int
    turns: tuple[Turn, ...]
    head: Head | None = None
    due_s: float | None = None


class Workload(Protocol):
    """Where sessions come from. `total` is None when there is no end of them; `at_once` is how many agents play them
    where the workload says so."""

    @property
    def total(self) -> int | None: ...

    @property
    def at_once(self) -> int | None: ...

    def session(self, number: int) -> Session:
        """The session of this number, from 0; the same at every call."""


def requests_of(turns: Sequence[Turn]) -> int:
    """How many requests a session's turns make, sub-agents' included, when nothing fails."""
    return sum(1 + sum(requests_of(branch.turns) for branch in turn.branches) for turn in turns)
