"""Our side of a comparison: the `dynamo` rule, told what happens in a walk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load_tests.baselines.agreement.walk import Finish, FirstToken, Placed, Removed, Stored
from load_tests.baselines.dynamo import Dynamo
from load_tests.sim.placing import Asked, ReplicaSpec
from router import wire

if TYPE_CHECKING:
    from load_tests.baselines.agreement.walk import Prompt, Told
    from load_tests.baselines.dynamo import CostParameters, CostParts

POOL_BLOCKS = 1_000_000  # never full


class Ours:
    """The rule, with replicas that are idle and empty at first."""

    def __init__(self, *, replicas: int, block_size: int, parameters: CostParameters) -> None:
        self.rule = Dynamo(seed=0, parameters=parameters)
        self._block_size = block_size
        for replica in range(replicas):
            self.rule.join(ReplicaSpec(str(replica), block_size, POOL_BLOCKS, 8_192, 0), 0.0)

    def tell(self, news: Told) -> None:
        """Let the rule see what happened."""
        match news:
            case Stored(replica, _, blocks):
                self._frame(replica, wire.Stored("gpu", blocks))
            case Removed(replica, blocks):
                self._frame(replica, wire.Removed("gpu", blocks))
            case Placed(request, prompt, replica):
                self.rule.put(self._asked(prompt, request), str(replica), 0.0)
            case FirstToken(request):
                self.rule.first_token(request, cached_tokens=0, now=0.0)
            case Finish(request):
                self.rule.finish(request, 0.0)

    def best(self, prompt: Prompt) -> set[int]:
        """The replicas of least cost."""
        costs = self.rule.costs(self._asked(prompt))
        least = min(costs.values())
        return {int(name) for name, cost in costs.items() if cost == least}

    def parts(self, replica: int, prompt: Prompt) -> CostParts:
        """What the cost of a replica is made of."""
        return self.rule.parts(str(replica), self._asked(prompt))

    def _frame(self, replica: int, op: wire.Op) -> None:
        idle = wire.Load(0, 0, 0, 0, 0)
        frame = wire.Frame(str(replica), "one", 0, 0.0, (op,), idle, self._block_size)
        self.rule.on_frame(str(replica), wire.encode_frame(frame), 0.0)

    def _asked(self, prompt: Prompt, request: int = 0) -> Asked:
        tokens = len(prompt.blocks) * self._block_size + prompt.tail_tokens
        return Asked(request, "", 0, tokens, prompt.blocks)
