"""Everything that decides what a swarm does. With the same settings it asks for the same things at the same times."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec

from load_tests.client import Api  # noqa: TC001 - msgspec reads it
from load_tests.swarm.schedule import Arrivals  # noqa: TC001 - same
from router.errors import InvalidRequest

Preamble = Literal["changing", "fixed", "none"]
RateOf = Literal["requests", "sessions"]
Scenario = Literal["agents", "hot-prefix", "fork", "trace"]

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]

DEFAULT_AGENTS: Final = 200
MAX_AGENTS: Final = 20_000
"""More than one process can play."""


FINITE: Final = frozenset({"hot-prefix", "fork"})
"""Scenarios that end by themselves, and are measured from their first request to their last."""
WHOLE: Final = MappingProxyType({"warmup_s": 0.0, "ramp_s": 0.0, "duration_s": 600.0, "cancel_share": 0.0})


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in seconds, shares from 0 to 1. With `rate` the loop is open: requests or sessions come at that rate,
    whatever the endpoint does; without it `agents` play one session after the other."""

    api: Api = "messages"
    model: str = ""
    scenario: Scenario = "agents"
    trace: str | None = None
    agents: Annotated[int, msgspec.Meta(ge=1, le=MAX_AGENTS)] | None = None
    """None where a rate, a trace's times or a named scenario decide; else DEFAULT_AGENTS."""
    rate: Positive | None = None
    rate_of: RateOf = "sessions"
    arrivals: Arrivals = "poisson"
    sessions: Count | None = None
    """At most so many sessions; None for as many as fit into the time."""
    duration_s: Positive = 60.0
    warmup_s: Seconds = 10.0
    ramp_s: Seconds = 5.0
    grace_s: Seconds = 30.0
    """How long requests in flight may take after the end."""
    request_limit_s: Positive = 300.0
    seed: int = 0
    salt: str = ""
    """Makes all texts of a run its own, so that no cache knows them from a run before."""

    heads: Count = 4
    """Kinds of agents: each has its own system text and tools."""
    system_chars: Count = 8_000
    tools: Annotated[int, msgspec.Meta(ge=0, le=64)] = 6
    result_chars: Count = 1_700
    turns: Count = 10
    """Mean requests of a session; between half and one and a half times as many."""
    answer_tokens: Count = 60
    """Mean length asked for; between half and one and a half times as long."""
    think_s: Seconds = 5.0
    """Mean pause of a tool or a person before the next request; exponential, at most `max_think_s`."""
    max_think_s: Seconds = 60.0
    think_scale: Seconds = 1.0
    """Of a trace's pauses."""
    fork_share: Share = 0.05
    """Share of turns that start two or three sub-agents."""
    cancel_share: Share = 0.02
    """Share of requests that the client cuts: half of them before the first token."""
    token_scale: Positive = 1.0
    """Of a trace's prompts and answers."""

    preamble: Preamble = "changing"
    slo_ttft_ms: Positive | None = None
    slo_itl_ms: Positive | None = None
    replicas: Count | None = None
    """How many replicas there are: one that never answers counts as idle. None: those that showed themselves."""
    replica_header: str = "x-kvist-replica"

    @property
    def end_s(self) -> float:
        """When nothing more is sent, from the start of the run."""
        return self.warmup_s + self.duration_s


def make_settings(**given: object) -> Settings:
    """Checked settings; what is None is left at its default. Raises `InvalidRequest` in words."""
    asked = {name: value for name, value in given.items() if value is not None}
    if asked.get("scenario") in FINITE:
        asked = {**WHOLE, **asked}
    try:
        settings = msgspec.convert(asked, Settings)
    except msgspec.ValidationError as fault:
        raise InvalidRequest(f"kvist swarm: {fault}") from fault
    if settings.scenario == "trace" and settings.trace is None:
        raise InvalidRequest("kvist swarm: the scenario `trace` needs --trace FILE")
    if settings.trace is not None and settings.rate is not None and settings.rate_of == "requests":
        raise InvalidRequest("kvist swarm: a trace's rate is of its sessions; a line of requests is a session of one")
    if settings.agents is not None and settings.rate is not None and settings.rate_of == "sessions":
        raise InvalidRequest("kvist swarm: say --agents (a closed loop) or --rate (an open one)")
    return settings
