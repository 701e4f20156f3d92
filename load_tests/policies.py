"""The rules of choice that can be compared, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load_tests.baselines.dynamo import TUNED, Dynamo
from load_tests.baselines.least_loaded import LeastLoaded
from load_tests.baselines.llm_d import LlmD
from load_tests.baselines.random_choice import Random
from load_tests.baselines.round_robin import RoundRobin
from load_tests.baselines.sglang import Sglang
from load_tests.baselines.sticky import Sticky
from load_tests.baselines.two_choices import TwoChoices
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from load_tests.sim.placing import Placing

KVIST: Final = "kvist"


def _dynamo_tuned(*, seed: int) -> Placing:
    return Dynamo(seed=seed, parameters=TUNED)


def _kvist(*, seed: int) -> Placing:
    from load_tests.sim.kvist_router import KvistPlacing  # noqa: PLC0415 - the whole router

    del seed  # it leaves nothing to chance
    return KvistPlacing()


_RULES: Final[dict[str, Callable[..., Placing]]] = {
    "random": Random,
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "two-choices": TwoChoices,
    "sticky": Sticky,
    "sglang": Sglang,
    "dynamo": Dynamo,
    "dynamo-tuned": _dynamo_tuned,
    "llm-d": LlmD,
    KVIST: _kvist,
}
POLICY_NAMES: Final = tuple(_RULES)


def policy_named(name: str, *, seed: int) -> Placing:
    """A new rule of this name. The same seed makes the same choices. Raises `InvalidRequest`, which names the rules."""
    rule = _RULES.get(name)
    if rule is None:
        raise InvalidRequest(f"no policy {name!r}: choose from {', '.join(POLICY_NAMES)}")
    return rule(seed=seed)
