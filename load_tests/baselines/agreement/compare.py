"""Both sides in the same random states, with the same events, reservations, first tokens and ends.

Where several replicas have the least cost, the real one draws: it is then asked DRAWS_PER_REPLICA times for each of
them, and agrees when it has drawn exactly those. For a disagreement it is looked up which part of the cost differs.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from load_tests.baselines.agreement.ours import Ours
from load_tests.baselines.agreement.walk import ALL_SIZES, Chosen, Placed, Reserve, Walk, as_line

if TYPE_CHECKING:
    from load_tests.baselines.agreement.walk import Action, Prompt, Sizes, Told
    from load_tests.baselines.dynamo import CostParameters

SCRIPT: Final = Path(__file__).with_name("peer_dynamo.py")
STATES_PER_WALK: Final = 200
WARM_UP_PER_REPLICA: Final = 3  # advances before the first comparison
DRAWS_PER_REPLICA: Final = 12


class RealSide(Protocol):
    """Dynamo's process: `load_tests.bench.peer.Peer` with SCRIPT, whose docstrings say what may be asked."""

    def ask(self, command: str, **arguments: Any) -> Any:
        """Send a command and wait for its answer."""


class Agreement(msgspec.Struct):
    """Choices compared. `ties` are those with several replicas of least cost; `causes` count what differed."""

    states: int = 0
    equal: int = 0
    ties: int = 0
    causes: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Equal choices among all, 0 to 1; NaN without any."""
        return self.equal / self.states if self.states else float("nan")

    def add(self, other: Agreement) -> None:
        """Count what another part of a run has found."""
        self.states += other.states
        self.equal += other.equal
        self.ties += other.ties
        self.causes += other.causes

    def told(self) -> str:
        """In words."""
        causes = ", ".join(f"{cause} {count}" for cause, count in self.causes.most_common()) or "nothing"
        return f"{self.share:.3%} of {self.states} choices are the same ({self.ties} ties); what differed: {causes}"


class Pair:
    """Our rule and the real one, told the same of one walk. `log` is all that both were told and the real one chose."""

    def __init__(self, walk: Walk, peer: RealSide, parameters: CostParameters) -> None:
        self._walk = walk
        self._peer = peer
        self.ours = Ours(replicas=walk.replicas, block_size=walk.block_size, parameters=parameters)
        self.log: list[Told] = []
        peer.ask("begin", replicas=walk.replicas, block_size=walk.block_size, parameters=parameters._asdict())

    def sizes(self) -> dict[str, int]:
        """Of the cluster."""
        return {"replicas": self._walk.replicas, "block_size": self._walk.block_size}

    def advance(self) -> None:
        """Let both see what happens until the next state."""
        for action in self._walk.actions():
            news = self._performed(action)
            self.log.append(news)
            self.ours.tell(news)

    def compare(self) -> Agreement:
        """Put one prompt to both."""
        prompt = self._walk.prompt()
        best = self.ours.best(prompt)
        draws = DRAWS_PER_REPLICA * len(best) if len(best) > 1 else 1
        drawn = set(self._peer.ask("choose", prompt=prompt, draws=draws))
        self.log.append(Chosen(prompt, tuple(sorted(drawn))))
        if drawn == best:
            return Agreement(1, 1, len(best) > 1)
        return Agreement(1, 0, len(best) > 1, Counter([self._cause(prompt)]))

    def _performed(self, action: Action) -> Told:
        """Let the real one see it; a request goes where it says."""
        answer = self._peer.ask("change", action=as_line(action))
        if not isinstance(action, Reserve):
            return action
        placed = Placed(action.request, action.prompt, answer)
        self._walk.placed(placed)
        return placed

    def _cause(self, prompt: Prompt) -> str:
        """Which part of the cost is another one, on any replica."""
        for replica, (cached, prefill_tokens, blocks) in enumerate(self._peer.ask("picture", prompt=prompt)):
            part = self.ours.parts(replica, prompt)
            if part.cached.gpu != cached:
                return "cached blocks"
            if part.prefill_tokens - cached * self._walk.block_size != prefill_tokens:
                return "tokens to prefill"
            if part.decode_blocks != blocks:
                return "blocks in use"
        return "the cost itself"


def walked(peer: RealSide, parameters: CostParameters, rng: random.Random, *, sizes: Sizes = ALL_SIZES) -> Pair:
    """Both sides after the beginning of a new walk."""
    walk = Walk(rng, sizes)
    pair = Pair(walk, peer, parameters)
    for _ in range(WARM_UP_PER_REPLICA * walk.replicas):
        pair.advance()
    return pair


def agreement(peer: RealSide, parameters: CostParameters, *, states: int, seed: int) -> Agreement:
    """Compare so many states. The same seed makes the same walks, as far as the real one's draws allow."""
    total, rng = Agreement(), random.Random(seed)
    while total.states < states:
        pair = walked(peer, parameters, rng)
        for _ in range(min(STATES_PER_WALK, states - total.states)):
            pair.advance()
            total.add(pair.compare())
        pair.ours.rule.check_integrity()
    return total
