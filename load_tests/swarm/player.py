"""One session against an endpoint: wait, ask, listen, fork and join, as its turns say.

Every request that begins ends in exactly one ledger entry, also when the run is stopped.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from load_tests.prose import attribution_header
from load_tests.swarm.bodies import Caller, encode
from load_tests.swarm.dialogue import Dialogue, assistant, message_text, prompt_text
from load_tests.swarm.endpoint import Call
from load_tests.swarm.entries import Asked, entry_of, unfinished
from load_tests.swarm.ideal import InfiniteCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from load_tests.swarm.block_text import BlockTexts
    from load_tests.swarm.dialogue import Prompt
    from load_tests.swarm.endpoint import Answer
    from load_tests.swarm.ledger import Entry
    from load_tests.swarm.run_clock import RunClock
    from load_tests.swarm.scenario import Branch, Session, Turn
    from load_tests.swarm.settings import Settings

ERROR_PAUSE_S: Final = 1.0
"""After an error an agent waits at least this long, as clients do that try again."""
FINAL_STATUSES: Final = frozenset({400, 401, 403, 404, 413, 422})
"""Saying the same again would not help: the session ends."""


class Asker(Protocol):
    """Who sends requests; `Endpoint` is one."""

    async def ask(self, call: Call) -> Answer: ...


class Watcher(Protocol):
    """Who is told of every request as it begins and ends."""

    def sent(self) -> None: ...

    def ended(self, entry: Entry) -> None: ...


class Who(NamedTuple):
    """One agent in one session."""

    agent: str
    session: int
    caller: Caller
    parent: str | None = None

    def sub(self, name: str) -> Who:
        """A sub-agent's identity."""
        agent = f"{self.agent}/{name}"
        return Who(agent, self.session, self.caller._replace(agent_id=name), self.agent)


class Step(NamedTuple):
    """One request of an agent: which turn of its, and when it is due."""

    who: Who
    number: int
    turn: Turn
    due_s: float


class Player:
    """Plays sessions. `texts` makes the prompts of those that a trace gives by ids."""

    def __init__(
        self,
        settings: Settings,
        asker: Asker,
        clock: RunClock,
        *,
        watcher: Watcher,
        texts: Callable[[int], BlockTexts] | None = None,
    ) -> None:
        self._settings = settings
        self._asker = asker
        self._clock = clock
        self._watcher = watcher
        self._texts = texts
        self._cache = InfiniteCache()
        self._headers = itertools.count(settings.seed * 2**32)

    def __repr__(self) -> str:
        return f"<Player, {self._cache!r}>"

    def begin(self, agent: str, session: Session) -> tuple[Who, Dialogue]:
        """Who asks, and a conversation without a turn yet."""
        name = f"{self._settings.salt}/{self._settings.seed}/{session.number}"
        who = Who(agent, session.number, Caller(str(uuid.uuid5(uuid.NAMESPACE_OID, name))))
        return who, Dialogue(session.head, self._texts(session.number) if self._texts else None)

    async def session(self, agent: str, session: Session, due_s: float) -> None:
        """All turns, the first one due at `due_s`; those after the end of the run are left out."""
        who, dialogue = self.begin(agent, session)
        await self._turns(who, session.turns, dialogue=dialogue, due_s=due_s)

    async def _turns(self, who: Who, turns: Sequence[Turn], *, dialogue: Dialogue, due_s: float) -> None:
        for number, turn in enumerate(turns):
            if not await self._clock.wait_until(due_s):
                return
            answer = await self.request(Step(who, number, turn, due_s), dialogue.ask(turn))
            dialogue.answered(answer.stream.answer.blocks())
            if answer.status in FINAL_STATUSES:
                return
            await self._join(who, turn.branches, dialogue)
            pause_s = turns[number + 1].think_s if number + 1 < len(turns) else 0.0
            due_s = self._clock.now_s() + max(pause_s, ERROR_PAUSE_S if answer.error else 0.0)

    async def _join(self, who: Who, branches: Sequence[Branch], dialogue: Dialogue) -> None:
        """All sub-agents begin now, and are done when this is."""
        if not branches:
            return
        now_s = self._clock.now_s()
        async with asyncio.TaskGroup() as group:
            for branch in branches:
                sub, own, due_s = who.sub(branch.name), dialogue.fork(), now_s + branch.delay_s
                group.create_task(self._turns(sub, branch.turns, dialogue=own, due_s=due_s))

    async def request(self, step: Step, prompt: Prompt) -> Answer:
        """One request, and its entry."""
        text = prompt_text(prompt)
        sight = self._cache.see(text)
        call, limit = self._call(step, prompt)
        who, now_s = step.who, self._clock.now_s()
        sent_s = max(now_s, step.due_s)
        asked = Asked(
            who.agent, who.parent, who.session, step.number, step.due_s, sent_s, sight.size, sight.seen, limit
        )
        self._watcher.sent()
        try:
            answer = await self._asker.ask(call)
        except asyncio.CancelledError:
            self._watcher.ended(unfinished(asked, self._settings, now_s=self._clock.now_s()))
            raise
        if answer.stream.pieces:
            said = assistant(answer.stream.answer.blocks())
            self._cache.see(text + message_text(said), sight)
        self._watcher.ended(entry_of(asked, answer, self._settings, start_s=self._clock.start_s))
        return answer

    def _call(self, step: Step, prompt: Prompt) -> tuple[Call, Literal["request", "run"]]:
        settings, turn = self._settings, step.turn
        body = encode(
            prompt,
            api=settings.api,
            model=settings.model,
            max_tokens=turn.max_tokens,
            attribution=self._attribution(),
            caller=step.who.caller,
        )
        left_s = max(0.0, settings.end_s + settings.grace_s - self._clock.now_s())
        call = Call(body, step.who.caller.headers(settings.api), turn.cut_after, min(settings.request_limit_s, left_s))
        return call, "request" if settings.request_limit_s <= left_s else "run"

    def _attribution(self) -> str | None:
        match self._settings.preamble:
            case "none":
                return None
            case "fixed":
                return attribution_header(self._settings.seed)
            case "changing":
                return attribution_header(next(self._headers))
