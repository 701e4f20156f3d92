"""Made-up runs for tests of reports."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from load_tests.swarm.settings import make_settings
from load_tests.swarm.summarise import About, summarise
from tests.load_tests.swarm.entries import entry

if TYPE_CHECKING:
    from load_tests.swarm.ledger import Entry
    from load_tests.swarm.summary import Summary


def run_of(
    count: int, *, seconds: float = 60.0, replicas: int = 4, label: str = "swarm"
) -> tuple[Summary, list[Entry]]:
    """A run of `count` requests, some cut, some refused, the first ten seconds a warm-up."""
    rng = random.Random(f"report/{count}/{label}")
    entries = [_one(rng, at * seconds / count, turn=at % 5, replicas=replicas) for at in range(count)]
    return summary_of(entries, label=label, seconds=seconds), entries


def summary_of(entries: list[Entry], *, label: str = "swarm", seconds: float = 60.0) -> Summary:
    """What they come to."""
    settings = make_settings(duration_s=seconds, warmup_s=10.0, slo_ttft_ms=500.0, model="a-model", seed=7)
    about = About(
        settings=settings,
        url="http://127.0.0.1:8000",
        started_at="2026-01-02T03:04:05+00:00",
        ended_s=seconds,
        versions={"kvist": "0.1.0"},
        machine={"cpus": 2},
        label=label,
    )
    return summarise(entries, about)


def _one(rng: random.Random, due_s: float, *, turn: int, replicas: int) -> Entry:
    waited_s = rng.lognormvariate(-2.0 if turn else -0.5, 0.6)
    ended = rng.random()
    known: dict[str, Any] = {
        "turn": turn,
        "due_s": due_s,
        "sent_s": due_s,
        "is_measured": due_s >= 10.0,
        "prompt_tokens": 1000,
    }
    known |= {"last_token_s": due_s + waited_s + 1.0, "replica": f"replica-{rng.randrange(replicas)}"}
    if ended < 0.03:
        name = rng.choice(["http_529", "http_503"])
        return entry(**known, first_token_s=None, outcome="refused", status=529, error=name)
    outcome = "cancelled" if ended < 0.06 else "completed"
    cached = 0 if turn == 0 else rng.randrange(700, 800)
    return entry(**known, first_token_s=due_s + waited_s, outcome=outcome, cached_tokens=cached)
