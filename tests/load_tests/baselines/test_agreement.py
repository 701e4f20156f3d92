"""Is `dynamo` the real Dynamo? What the real one chose was recorded; with its wheels at hand it is asked again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from load_tests.baselines.agreement.compare import SCRIPT, Agreement, agreement
from load_tests.baselines.agreement.ours import Ours
from load_tests.baselines.agreement.recording import STATES, recorded, replayed
from load_tests.baselines.agreement.walk import (
    Placed,
    Prompt,
    Removed,
    Reserve,
    Stored,
    Walk,
    as_line,
    from_line,
)
from load_tests.baselines.dynamo import DEFAULTS, TUNED, CostParameters
from load_tests.bench.peer import Peer
from load_tests.peers.environment import lab_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = Path(__file__).with_name("dynamo_choices.jsonl")


class Imitation:
    """A real side that is our rule again, with parameters of its own and, it may be, blind for some replica."""

    def __init__(self, parameters: CostParameters, *, blind: int | None = None) -> None:
        self._parameters = parameters
        self._blind = blind
        self._draws = random.Random(0)

    def ask(self, command: str, **arguments: Any) -> Any:
        return getattr(self, command)(**arguments)

    def begin(self, replicas: int, block_size: int, parameters: dict[str, float]) -> None:
        self._side = Ours(replicas=replicas, block_size=block_size, parameters=self._parameters)
        self._replicas, self._block_size = replicas, block_size

    def change(self, action: list[Any]) -> int | None:
        if action[0] == "reserve":
            _, request, prompt, allowed = action
            replica = self._draws.choice(allowed)
            self._side.tell(Placed(request, Prompt(*prompt), replica))
            return int(replica)
        news = from_line(action)
        if not (isinstance(news, Stored) and news.replica == self._blind):
            self._side.tell(news)
        return None

    def choose(self, prompt: Prompt, draws: int) -> list[int]:
        best = sorted(self._side.best(prompt))
        return self._draws.choices(best, k=draws)

    def picture(self, prompt: Prompt) -> list[list[int]]:
        parts = [self._side.parts(replica, prompt) for replica in range(self._replicas)]
        size = self._block_size
        return [[one.cached.gpu, one.prefill_tokens - one.cached.gpu * size, one.decode_blocks] for one in parts]


def recorded_choices() -> list[tuple[set[int], set[int]]]:
    with RECORDED.open(encoding="utf-8") as lines:
        return list(replayed(lines))


def test_every_recorded_choice_of_the_real_one_is_ours() -> None:
    choices = recorded_choices()
    assert len(choices) == 2 * STATES
    assert all(real == ours for real, ours in choices)
    assert len({tuple(ours) for _, ours in choices if len(ours) == 1}) > 1


def test_recorded_choices_tell_the_parameters_apart() -> None:
    lines = RECORDED.read_text(encoding="utf-8").replace('"prefill_load_scale": 32.0', '"prefill_load_scale": 1.0')
    assert sum(real == ours for real, ours in replayed(lines.splitlines())) < 2 * STATES


def test_a_recording_is_replayed_to_the_same_choices() -> None:
    lines = list(recorded(Imitation(TUNED), TUNED, seed=5))
    choices = list(replayed(lines))
    assert len(choices) == STATES
    assert all(real == ours for real, ours in choices)


@pytest.mark.parametrize("parameters", [DEFAULTS, TUNED])
def test_two_of_the_same_rule_agree_wholly(parameters: CostParameters) -> None:
    found = agreement(Imitation(parameters), parameters, states=250, seed=1)
    assert (found.states, found.equal, found.causes) == (250, 250, {})


def test_another_cost_is_noticed_and_named() -> None:
    found = agreement(Imitation(TUNED), DEFAULTS, states=250, seed=1)
    assert found.share < 0.95
    assert set(found.causes) == {"the cost itself"}


def test_a_replica_whose_events_are_not_seen_is_noticed_and_named() -> None:
    found = agreement(Imitation(TUNED, blind=0), TUNED, states=400, seed=1)
    assert found.share < 1
    assert set(found.causes) <= {"cached blocks", "tokens to prefill"}
    assert found.causes["cached blocks"]


def test_shares_of_parts_add_up() -> None:
    total = Agreement(4, 3, 1)
    total.add(Agreement(4, 4, 0))
    assert (total.share, total.ties) == (7 / 8, 1)
    assert total.told() == "87.500% of 8 choices are the same (1 ties); what differed: nothing"


@pytest.mark.parametrize("seed", range(10))
def test_caches_of_a_walk_are_prefix_closed_and_requests_are_placed_once(seed: int) -> None:
    rng = random.Random(seed)
    walk = Walk(rng)
    cached: list[set[int]] = [set() for _ in range(walk.replicas)]
    parents: dict[int, int | None] = {}
    requests: set[int] = set()
    for _ in range(150):
        for action in walk.actions():
            if isinstance(action, Stored):
                for parent, block in zip((action.parent, *action.blocks), action.blocks, strict=False):
                    assert parent is None or parent in cached[action.replica]
                    assert parents.setdefault(block, parent) == parent
                    cached[action.replica].add(block)
            elif isinstance(action, Removed):
                cached[action.replica] -= set(action.blocks)
                assert all(parents[block] in cached[action.replica] | {None} for block in cached[action.replica])
            elif isinstance(action, Reserve):
                assert action.request not in requests
                requests.add(action.request)
                walk.placed(Placed(action.request, action.prompt, rng.choice(action.allowed)))
                continue
            assert from_line(as_line(action)) == action
    assert requests


@pytest.fixture
def real() -> Iterator[Peer]:
    lab = lab_folder()
    if not (lab / "dynamo" / "bin" / "python").is_file():
        pytest.skip(f"Dynamo is not installed in {lab}")
    with Peer("dynamo", lab=lab, script=SCRIPT) as peer:
        yield peer


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [DEFAULTS, TUNED])
def test_dynamos_own_service_chooses_as_we_do(real: Peer, parameters: CostParameters) -> None:
    found = agreement(real, parameters, states=200, seed=2)
    assert found.states == 200
    assert found.share >= 0.99, found.told()
