"""Synthetic agents: shared heads, growing conversations, tool pauses, sub-agents, requests cut short; all seeded."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from load_tests.bench.ingress_bodies import Head, Library
from load_tests.prose import sentences
from load_tests.swarm.scenario import Ask, Branch, Session, ToolRound, Turn

if TYPE_CHECKING:
    from load_tests.swarm.settings import Settings

SENTENCE_CHARS: Final = 60
"""At least, of a sentence with the end of its line."""
TASK_SENTENCES: Final = 13
BRANCH_TASK_SENTENCES: Final = 5
CHARS_PER_TOKEN: Final = 4
BRANCHES: Final = (2, 3)
BRANCH_TURNS: Final = (2, 4)


class Agents:
    """An endless supply of sessions. Session n is a function of the settings and n alone."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._library = Library()
        self._heads = [make_head(settings, kind) for kind in range(settings.heads)]
        self.at_once: int | None = None

    def __repr__(self) -> str:
        return f"<Agents of {len(self._heads)} kinds>"

    @property
    def total(self) -> int | None:
        return self._settings.sessions

    def session(self, number: int) -> Session:
        rng = random.Random(f"{self._settings.seed}/{number}")
        head = self._heads[rng.randrange(len(self._heads))]
        count = _around(rng, self._settings.turns)
        turns = self._turns(rng, head, count, opening=_task(number, rng))
        return Session(number=number, head=head, turns=turns)

    def _turns(self, rng: random.Random, head: Head, count: int, *, opening: Ask) -> tuple[Turn, ...]:
        first = self._turn(rng, opening, branches=())
        return (first, *(self._later(rng, head, has_next=at < count - 1) for at in range(1, count)))

    def _later(self, rng: random.Random, head: Head, *, has_next: bool) -> Turn:
        """Sub-agents are started where a next turn can join them."""
        forks = rng.random() < self._settings.fork_share and has_next
        branches = tuple(self._branch(rng, head, at) for at in range(rng.randint(*BRANCHES))) if forks else ()
        return self._turn(rng, tool_round(rng, head, self._library, self._settings.result_chars), branches=branches)

    def _branch(self, rng: random.Random, head: Head, number: int) -> Branch:
        opening = Ask(f"You are sub-agent {number}. {sentences(rng.randrange(2**30), BRANCH_TASK_SENTENCES)}")
        rounds = range(rng.randint(*BRANCH_TURNS) - 1)
        turns = [self._turn(rng, opening, branches=(), think_s=0.0)]
        for _ in rounds:
            content = tool_round(rng, head, self._library, self._settings.result_chars)
            turns.append(self._turn(rng, content, branches=()))
        return Branch(name=f"sub{number}", turns=tuple(turns))

    def _turn(
        self,
        rng: random.Random,
        content: Ask | ToolRound,
        *,
        branches: tuple[Branch, ...],
        think_s: float | None = None,
    ) -> Turn:
        settings = self._settings
        max_tokens = _around(rng, settings.answer_tokens)
        drawn_s = min(rng.expovariate(1.0) * settings.think_s, settings.max_think_s)
        return Turn(
            content=content,
            think_s=drawn_s if think_s is None else think_s,
            max_tokens=max_tokens,
            said=sentences(rng.randrange(2**30), max(1, max_tokens * CHARS_PER_TOKEN // SENTENCE_CHARS)),
            cut_after=_cut(rng, max_tokens, share=settings.cancel_share),
            branches=branches,
        )


def make_head(settings: Settings, kind: int) -> Head:
    """System text and tools of one kind of agent, which no other kind and no other salt begins with."""
    name = f"Workspace {settings.salt}-{settings.seed}-{kind}."
    text = sentences(kind, -(-settings.system_chars // SENTENCE_CHARS))
    tools = [tool | {"description": f"{name} {tool['description']}"} for tool in Head.make(tools=settings.tools).tools]
    return Head(f"{name}\n{text}"[: settings.system_chars], tools)


def tool_round(rng: random.Random, head: Head, library: Library, chars: int) -> ToolRound:
    """One of the head's tools shows `chars` of a source file."""
    path, shown = library.excerpt(rng, chars)
    tool = rng.choice(head.tools)["name"] if head.tools else "read"
    return ToolRound(tool=tool, path=path, result=shown)


def _task(number: int, rng: random.Random) -> Ask:
    return Ask(f"Task {number}: {sentences(rng.randrange(2**30), TASK_SENTENCES)}")


def _around(rng: random.Random, mean: int) -> int:
    """Between half and one and a half times `mean`, at least 1."""
    return max(1, rng.randint((mean + 1) // 2, mean + mean // 2))


def _cut(rng: random.Random, max_tokens: int, *, share: float) -> int | None:
    """Where the client cuts: for half of those cut before the first piece, else in the middle."""
    if rng.random() >= share:
        return None
    return 0 if rng.random() < 0.5 else rng.randint(1, max(1, max_tokens // 4))
