"""A simulated router process: the real fleet, told everything by lossy links, and watched after every message."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from router.errors import NoReplica
from router.limits import INDEX_MARGIN_BLOCKS, LEASE_S, TICK_INTERVAL_S
from tests.simulation.link import FRAME_S, Link, Message
from tests.simulation.world import Violation, require

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.fleet import Action, Decision
    from router.replicas import PromptBlocks, ReplicaInfo
    from tests.simulation.replica import SimReplica
    from tests.simulation.world import World

SLACK_S: Final = 1e-6


class SimRouter:
    """`links` are its sockets: what is under way on those of an earlier process never arrives."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._process = 0
        self.is_paused = False
        self.drop_share = 0.0
        self.fleet = world.parts.fleet()
        self.links: dict[str, Link] = {}
        self._world = world
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        world.clock.at(world.rng.uniform(0, TICK_INTERVAL_S), self._tick)

    def __repr__(self) -> str:
        return f"<SimRouter {self.name} {self.fleet!r}>"

    def soon(self, call: Callable[..., None], *args: Any) -> None:
        """Call now, or when the process goes on."""
        if self.is_paused:
            self._inbox.append((call, args))
        else:
            call(*args)

    def restart(self, replicas: list[SimReplica]) -> None:
        """A new process that knows nothing but who the replicas are."""
        for link in self.links.values():
            link.replica.links.pop(self, None)
        self._process += 1
        self.is_paused = False
        self._inbox.clear()
        self.links.clear()
        self.fleet = self._world.parts.fleet()
        for replica in replicas:
            self._join(replica, replica.info)

    def pause(self, until: float) -> None:
        """Stop the process, as a signal does."""
        self.is_paused = True
        self._world.clock.at(until, self._resume, self._process)

    def join(self, replica: SimReplica) -> None:
        """News of a replica, as it is now."""
        self.soon(self._join, replica, replica.info)

    def leave(self, replica: SimReplica) -> None:
        """News that a replica is gone."""
        self.soon(self._leave, replica)

    def on_frame(self, link: Link, message: Message) -> None:
        if self.is_paused:
            self._inbox.append((self.on_frame, (link, message)))
            return
        name, now = link.replica.name, self._world.clock.now
        if self.links.get(name) is not link:
            return
        link.hear(message, now)
        actions = self.fleet.on_frame(name, message.data, now)
        if actions:
            self._perform(actions)
        self.check_link(link)

    def on_chunk(self, link: Link, data: bytes) -> None:
        if self.is_paused:
            self._inbox.append((self.on_chunk, (link, data)))
            return
        name = link.replica.name
        if self.links.get(name) is not link:
            return
        self._perform(self.fleet.on_chunk(name, data, self._world.clock.now))
        self.check_link(link)

    def choose(self, prompt: PromptBlocks) -> Decision | None:
        """A choice, checked: no credit for what is not believed, nobody who is silent, never the last token."""
        now = self._world.clock.now
        try:
            decision = self.fleet.choose(prompt, now)
        except NoReplica:
            return None
        for score in decision.scores:
            link = self.links[score.replica]
            silent_s = now - link.heard_at
            require(silent_s <= LEASE_S + TICK_INTERVAL_S + SLACK_S, f"{score.replica} is routable, silent {silent_s}")
            if score.cached_tokens:
                require(not self.fleet.fenced(score.replica), f"{score.replica} is fenced and gets credit")
                self.check_link(link)
        require(decision.predicted_cached_tokens < max(prompt.prompt_tokens, 1), "the last token is always computed")
        self.check_loads(decision.candidates[0])
        return decision

    def check_link(self, link: Link) -> None:
        """What is shown is bounded; while believed it is exactly what the replica showed as of a frame no older than
        any heard."""
        replica = link.replica
        member = self.fleet._members[replica.name]
        shown = self.fleet._indexes[member.block_size]._holdings[replica.name].gpu
        bound = replica.pool_blocks + (0 if member.believed else INDEX_MARGIN_BLOCKS)
        if len(shown) > bound:
            raise Violation(f"{replica.name}: {len(shown)} blocks are shown of {bound}")
        if not member.believed:
            return
        feed = member.feed
        ordinal = replica.ordinal_of[feed.incarnation]
        applied = -1 if feed._applied is None else feed._applied
        if ordinal < link.heard_ordinal:
            raise Violation(f"{feed!r} is believed after a newer incarnation was heard")
        if ordinal == link.heard_ordinal and applied < link.heard_seq:
            raise Violation(f"{feed!r} is believed without frame {link.heard_seq}")
        if link.checked != (ordinal, applied):
            link.checked = ordinal, applied
            history = replica.history[ordinal]
            if applied + 1 >= len(history) or sum(shown) != history[applied + 1]:
                raise Violation(f"{feed!r} shows other blocks than its replica did at that frame")

    def check_loads(self, name: str) -> None:
        """Sums of reservations never go below zero."""
        if name in self.fleet._members:
            load = self.fleet._members[name].load
            sums = load.prefill_tokens, load.fresh_tokens, load.backlog_tokens, load.running
            require(min(sums) >= 0, f"{self!r}: {name} has negative reservations {sums}")

    def shows(self, replica: SimReplica) -> bool:
        """Whether this replica is believed and exactly what its relay shows now is shown of it."""
        link = self.links.get(replica.name)
        member = self.fleet._members.get(replica.name)
        if link is None or member is None or not member.believed:
            return False
        shown = self.fleet._indexes[member.block_size]._holdings[replica.name].gpu
        return member.feed.incarnation == replica.announcer.incarnation and sum(shown) == replica.history[-1][-1]

    def is_current(self, replica: SimReplica) -> bool:
        """Whether this router knows the newest frame of the replica, and nothing is under way between them."""
        member = self.fleet._members.get(replica.name)
        return self.shows(replica) and member is not None and member.feed._applied == replica.announcer.seq

    def _join(self, replica: SimReplica, info: ReplicaInfo) -> None:
        now = self._world.clock.now
        link = self.links.get(replica.name)
        if link is None:
            link = self.links[replica.name] = replica.links[self] = Link(self._world, replica)
            link.drop_share = self.drop_share
        link.heard_at, link.checked = now, None
        self._perform(self.fleet.join(info, now))

    def _leave(self, replica: SimReplica) -> None:
        if self.links.pop(replica.name, None) is not None:
            replica.links.pop(self, None)
        self.fleet.leave(replica.name, self._world.clock.now)

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            link = self.links[action.replica]
            link.carry(link.replica.on_request, link, self, action.request, takes_s=FRAME_S)

    def _resume(self, process: int) -> None:
        if process != self._process or not self.is_paused:
            return
        self.is_paused = False
        while self._inbox:  # before time passes for the fleet, as the subscriber does
            call, args = self._inbox.popleft()
            call(*args)
        self._perform(self.fleet.tick(self._world.clock.now))

    def _tick(self) -> None:
        if not self.is_paused:
            self._perform(self.fleet.tick(self._world.clock.now))
        self._world.clock.at(self._world.clock.now + TICK_INTERVAL_S, self._tick)
