"""The published experiment and a team of agents in virtual time, on engines of a calibration's pace.

Prompts are blocks here: a line that is stripped leaves the blocks as they are, one that stays makes all of them new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from load_tests.article_live import ANSWER_TOKENS, REQUESTS_PER_ARM, TEAM_AGENTS
from load_tests.article_report import Arms, Team
from load_tests.demo_arms import ARMS
from load_tests.policies import policy_named
from load_tests.sim.cluster import even_cluster
from load_tests.sim.work import After, Run, SimRequest, Workload
from load_tests.simulate import simulate

if TYPE_CHECKING:
    from load_tests.demo_arms import Arm
    from load_tests.sim.calibration import Calibration
    from load_tests.sim.outcome import Outcome

BLOCK_SIZE: Final = 16
PROMPT_TOKENS: Final = 52_000
REPLICAS: Final = 2
POOL_BLOCKS: Final = 400_000
NEW_BLOCKS: Final = 1_000_000
"""Apart from each other, in block ids, are texts that share nothing."""
TEAM_CALLS: Final = 42
HEAD_TOKENS: Final = 12_800
TURN_TOKENS: Final = 720
TURN_ANSWER_TOKENS: Final = 16
PAUSE_S: Final = 0.5


def simulate_arms(pace: Calibration) -> Arms:
    """One request at a time, the first of them cold and not counted."""
    order: list[Arm] = ["stable", *(arm for at in range(REQUESTS_PER_ARM) for arm in ARMS[at % 3 :] + ARMS[: at % 3])]
    requests = [_ask(number, arm) for number, arm in enumerate(order)]
    fates = _played("the published experiment", requests, pace).fates
    ttft_ms = {arm: list[float]() for arm in ARMS}
    for arm, fate in list(zip(order, fates, strict=True))[1:]:
        ttft_ms[arm].append(1e3 * (fate.first_token_at - fate.ready_at))
    return Arms.of(ttft_ms, prompt_tokens=PROMPT_TOKENS)


def simulate_team(pace: Calibration) -> Team:
    """Agents with one head who each make their calls one after the other."""
    requests = [_call(agent, turn) for turn in range(TEAM_CALLS) for agent in range(TEAM_AGENTS)]
    outcome = _played("a team", requests, pace)
    return Team.of(
        agents=TEAM_AGENTS,
        calls=len(requests),
        prompt_tokens=sum(request.prompt_tokens for request in requests),
        cached_tokens=sum(fate.cached_tokens for fate in outcome.fates),
    )


def _played(name: str, requests: list[SimRequest], pace: Calibration) -> Outcome:
    workload = Workload(name, BLOCK_SIZE, requests)
    cluster = even_cluster(pace, replicas=REPLICAS, block_size=BLOCK_SIZE, pool_blocks=POOL_BLOCKS)
    return simulate(workload, cluster, policy_named("kvist", seed=0))


def _ask(number: int, arm: str) -> SimRequest:
    first = NEW_BLOCKS * number if arm == "varying" else 0
    runs = (Run(first, (PROMPT_TOKENS + ANSWER_TOKENS - 1) // BLOCK_SIZE),)
    after = (After(number - 1, 0.0),) if number else ()
    return SimRequest(f"s{number}", 0, PROMPT_TOKENS, ANSWER_TOKENS, runs, after=after)


def _call(agent: int, turn: int) -> SimRequest:
    prompt_tokens = HEAD_TOKENS + (turn + 1) * TURN_TOKENS
    own = (prompt_tokens + TURN_ANSWER_TOKENS - 1) // BLOCK_SIZE - HEAD_TOKENS // BLOCK_SIZE
    runs = (Run(0, HEAD_TOKENS // BLOCK_SIZE), Run(NEW_BLOCKS * (agent + 1), own))
    after = (After((turn - 1) * TEAM_AGENTS + agent, PAUSE_S),) if turn else ()
    return SimRequest(f"agent{agent}", turn, prompt_tokens, TURN_ANSWER_TOKENS, runs, at=PAUSE_S * agent, after=after)
