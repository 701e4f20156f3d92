"""Kvist in this process, over a simulated engine whose answers are scripted and whose pings come soon."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cluster.exchange import Pacing
from cluster.models.served import load_model
from cluster.prompt.canonical import Rules
from cluster.tenants import Tenants
from tests.cluster.support import EngineBackend, serving_over
from tests.conformance.protocol.bodies import SCRIPT
from tests.conformance.protocol.probe import BLOCK_TOKENS, CONTEXT_TOKENS, KEY
from workers.sim_engine import SimEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.backend import Job
    from tests.cluster.support import EngineStream
    from tests.conformance.protocol.probe import Need

PING_INTERVAL_S = 0.1
EVERYTHING: Final[frozenset[Need]] = frozenset({"engine", "calls", "script"})


class _Scripted(EngineBackend):
    """Scripted calls have the form that `tool_choice` asks for; the simulated engine cannot be held to that."""

    def start(self, job: Job, *, exclude: frozenset[str] = frozenset()) -> EngineStream:
        form = job.sampling.structured
        if form is None or form.kind != "structural_tag":
            return super().start(job)
        return super().start(replace(job, sampling=replace(job.sampling, structured=None)))


@asynccontextmanager
async def scripted_app(model: Path) -> AsyncIterator[str]:
    """The app on loopback: its URL. The model is called `tiny`."""
    served = load_model(model, name="tiny", max_model_len=CONTEXT_TOKENS, rules=Rules())
    served.warm()
    settings = {"speed": 0.5, "block_size": BLOCK_TOKENS, "max_model_len": CONTEXT_TOKENS, "answers": list(SCRIPT)}
    engine = SimEngine.from_settings("tiny", model, settings)
    await engine.start()
    tenants = Tenants.sharing_default([KEY])
    try:
        backend = _Scripted(engine)
        pacing = Pacing(ping_interval_s=PING_INTERVAL_S)
        async with serving_over(backend, {"tiny": served}, tenants, pacing=pacing) as (url, _):
            yield url
    finally:
        await engine.close()
