"""What the real one chose in some small states, as lines of a file that needs no peer to be checked."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final

from load_tests.baselines.agreement.compare import walked
from load_tests.baselines.agreement.ours import Ours
from load_tests.baselines.agreement.walk import SMALL_SIZES, Chosen, as_line, from_line
from load_tests.baselines.dynamo import CostParameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from load_tests.baselines.agreement.compare import RealSide

STATES: Final = 60


def recorded(peer: RealSide, parameters: CostParameters, *, seed: int) -> Iterator[str]:
    """One small walk: first its sizes, then all that happened and was chosen, a line each."""
    pair = walked(peer, parameters, random.Random(seed), sizes=SMALL_SIZES)
    for _ in range(STATES):
        pair.advance()
        pair.compare()
    yield json.dumps(pair.sizes() | parameters._asdict())
    for news in pair.log:
        yield json.dumps(as_line(news))


def replayed(lines: Iterable[str]) -> Iterator[tuple[set[int], set[int]]]:
    """For every recorded choice, the replicas that the real one chose and those that ours would."""
    ours: Ours | None = None
    for line in lines:
        what: Any = json.loads(line)
        if isinstance(what, dict):
            replicas, block_size = what.pop("replicas"), what.pop("block_size")
            ours = Ours(replicas=replicas, block_size=block_size, parameters=CostParameters(**what))
            continue
        assert ours is not None
        news = from_line(what)
        if isinstance(news, Chosen):
            yield set(news.replicas), ours.best(news.prompt)
        else:
            ours.tell(news)
