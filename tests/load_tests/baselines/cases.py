"""Small replicas, prompts and frames for the tests of rules of choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from load_tests.baselines.tracked import Tracked
from load_tests.sim.placing import Asked, ReplicaSpec
from router.wire import Frame, Load, Removed, Stored, encode_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

Rule = TypeVar("Rule", bound=Tracked)

BLOCK = 16
POOL = 1_000


def spec(name: str) -> ReplicaSpec:
    return ReplicaSpec(name, BLOCK, POOL, 8_192, 0)


def joined(rule: Rule, *names: str) -> Rule:
    """The rule, knowing replicas of these names."""
    for name in names:
        rule.join(spec(name), 0.0)
    return rule


def asked(request: int, hashes: Sequence[int] = (), *, session: str = "", tokens: int | None = None) -> Asked:
    """A prompt of these blocks, which are full unless `tokens` says otherwise."""
    return Asked(request, session or f"session-{request}", 0, len(hashes) * BLOCK if tokens is None else tokens, hashes)


def chain(name: int, blocks: int) -> list[int]:
    """Hashes of a prompt's blocks. Prompts of other names share nothing with it."""
    return [name * 1_000_000 + number for number in range(1, blocks + 1)]


def frame(
    replica: str,
    *,
    stored: Sequence[int] = (),
    removed: Sequence[int] = (),
    waiting: int = 0,
    free: int = POOL,
    backlog: int = 0,
) -> bytes:
    """An event frame; the numbers of frames mean nothing to baselines."""
    ops = (Stored("gpu", tuple(stored)),) * bool(stored) + (Removed("gpu", tuple(removed)),) * bool(removed)
    return encode_frame(Frame(replica, "one", 0, 0.0, ops, Load(0, waiting, backlog, free, POOL), BLOCK))


def loaded(rule: Tracked, counts: dict[str, int]) -> None:
    """Give replicas so many requests without blocks, whatever the rule would choose."""
    number = 1_000_000
    for name, count in counts.items():
        for _ in range(count):
            number += 1
            rule.put(asked(number), name, 0.0)
