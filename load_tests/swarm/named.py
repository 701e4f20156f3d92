"""Scenarios by name: what is known to break routers, in fixed sizes so that results compare.

`hot-prefix`  one shared 20 KB system prompt, 64 sessions of 3 turns, 36 at once, no pauses
`fork`        families: one agent reads a long prefix, then six siblings fork from it at once
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import msgspec

from load_tests.bench.ingress_bodies import Head, Library
from load_tests.prose import sentences
from load_tests.swarm.agents import SENTENCE_CHARS, tool_round
from load_tests.swarm.scenario import Ask, Branch, Session, Turn

if TYPE_CHECKING:
    from load_tests.swarm.scenario import ToolRound
    from load_tests.swarm.settings import Settings

HOT_SYSTEM_CHARS: Final = 20_000
HOT_SESSIONS: Final = 64
HOT_TURNS: Final = 3
HOT_AT_ONCE: Final = 36
HOT_TURN_CHARS: Final = 400
FAMILIES: Final = 12
FAMILIES_AT_ONCE: Final = 2
SIBLINGS: Final = 6
SIBLING_TURNS: Final = 2
FAMILY_PREFIX_CHARS: Final = 40_000
TURN_CHARS: Final = 1_500


class HotPrefix:
    """Sessions that have nothing of their own but their turns."""

    total: int | None = HOT_SESSIONS
    at_once: int | None = HOT_AT_ONCE

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._library = Library()
        text = sentences(settings.seed, -(-HOT_SYSTEM_CHARS // SENTENCE_CHARS))
        self._head = Head(f"Workspace {settings.salt}-{settings.seed}.\n{text}"[:HOT_SYSTEM_CHARS], [])

    def session(self, number: int) -> Session:
        rng = random.Random(f"hot/{self._settings.seed}/{number}")
        first = Ask(f"Task {number}: {sentences(rng.randrange(2**30), HOT_TURN_CHARS // SENTENCE_CHARS)}")
        contents: list[Ask | ToolRound] = [first]
        contents += (tool_round(rng, self._head, self._library, HOT_TURN_CHARS) for _ in range(HOT_TURNS - 1))
        tokens = self._settings.answer_tokens
        turns = tuple(Turn(content=content, think_s=0.0, max_tokens=tokens) for content in contents)
        return Session(number=number, head=self._head, turns=turns)


class Fork:
    """Families. The siblings' first requests are due in the moment of their parent's first answer."""

    total: int | None = FAMILIES
    at_once: int | None = FAMILIES_AT_ONCE

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._library = Library()

    def session(self, number: int) -> Session:
        rng = random.Random(f"fork/{self._settings.seed}/{number}")
        text = sentences(rng.randrange(2**30), -(-FAMILY_PREFIX_CHARS // SENTENCE_CHARS))
        head = Head(f"Family {self._settings.salt}-{number}.\n{text}"[:FAMILY_PREFIX_CHARS], [])
        siblings = tuple(self._sibling(rng, head, at) for at in range(SIBLINGS))
        first = self._turn(Ask(f"Plan task {number}."))
        joined = self._turn(tool_round(rng, head, self._library, TURN_CHARS))
        return Session(number=number, head=head, turns=(msgspec.structs.replace(first, branches=siblings), joined))

    def _sibling(self, rng: random.Random, head: Head, number: int) -> Branch:
        first = Ask(f"You are sub-agent {number}. {sentences(rng.randrange(2**30), TURN_CHARS // SENTENCE_CHARS)}")
        contents: list[Ask | ToolRound] = [first]
        contents += (tool_round(rng, head, self._library, TURN_CHARS) for _ in range(SIBLING_TURNS - 1))
        return Branch(name=f"sub{number}", turns=tuple(self._turn(content) for content in contents))

    def _turn(self, content: Ask | ToolRound) -> Turn:
        return Turn(content=content, think_s=0.0, max_tokens=self._settings.answer_tokens)
