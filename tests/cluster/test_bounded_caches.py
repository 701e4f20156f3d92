"""Distinct prompts leave an ingress as large as it was; `make caches` sends a million, with the limits as they are."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from cluster.ingress import build_app
from cluster.models import served as served_module
from cluster.models.served import load_model
from cluster.output.families import Family
from cluster.prompt.canonical import Rules
from cluster.tenants import Tenant, Tenants
from router.limits import SEGMENT_CACHE_BYTES, THREAD_MEMORY_BYTES, TURN_MEMORY_BYTES
from tests.cluster.support import EngineBackend, ScriptedEngine, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from starlette.types import Message

    from cluster.models.served import ServedModel

    Ask = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]

pytestmark = pytest.mark.anyio
TENANTS = [Tenant(id=f"tenant-{number}") for number in range(5)]
KEYS = [f"key-of-{tenant.id}" for tenant in TENANTS]
LIMITS = {"SEGMENT_CACHE_BYTES": 40_000, "THREAD_MEMORY_BYTES": 80_000, "TURN_MEMORY_BYTES": 8_000}
PROMPTS = 100
PLAIN = Family("none", "none")


def asking(model: ServedModel) -> Ask:
    """Requests into the app, without sockets: each with the next key, so of another tenant."""
    engine = ScriptedEngine()
    engine.script = [packed([300, 301, 302])]
    backend, keys = EngineBackend(engine), Tenants(dict(zip(KEYS, TENANTS, strict=True)))
    app = build_app(models={"tiny": model}, backend=backend, tenants=keys)
    count = 0

    async def ask(body: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        engine.generations.clear()
        backend.jobs.clear()
        sent, status = [json.dumps(body).encode()], []

        async def receive() -> Message:
            if sent:
                return {"type": "http.request", "body": sent.pop()}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            status.append(message.get("status"))

        headers = [(b"x-api-key", KEYS[count % len(KEYS)].encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": headers, "query_string": b""}
        await app(scope, receive, send)
        assert status[0] == 200

    return ask


def body(number: int) -> dict[str, Any]:
    """No two have a system text, a first or a second turn in common."""
    turns = [f"Question {number} of many.", f"Answer {number}, at length: {'so and so, ' * 20}", f"And {number}?"]
    messages = [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(turns)]
    return {"model": "tiny", "max_tokens": 9, "system": f"System {number}.", "messages": messages}


async def grown_bytes(model: ServedModel, prompts: int) -> int:
    """By how much the process is larger after all prompts than after the first half, which fills every cache."""
    ask, process = asking(model), psutil.Process()
    half: int = process.memory_info().rss
    for number in range(prompts):
        await ask(body(number))
        if number == prompts // 2:
            gc.collect()
            half = process.memory_info().rss
    gc.collect()
    end: int = process.memory_info().rss
    return end - half


def held_bytes(model: ServedModel) -> tuple[int, int, int]:
    """What segments, threads and turns hold, each counted right."""
    assert model.warm_path is not None
    assert model.turns is not None
    segments, threads, turns = model._segmenter._cache, model.warm_path.memory, model.turns._memory
    for cache in (segments, threads, turns):
        cache.check_integrity()
    return segments._bytes, sum(threads._bytes.values()), turns._total_bytes


async def test_distinct_prompts_fill_every_cache_and_no_more(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SEGMENT_CACHE_BYTES, THREAD_MEMORY_BYTES and TURN_MEMORY_BYTES, so small here that a few prompts fill them."""
    for name, limit in LIMITS.items():
        monkeypatch.setattr(served_module, name, limit)
    model = load_model(tiny_model, name="tiny", max_model_len=4096, rules=Rules(), parsers=PLAIN)
    ask = asking(model)
    for number in range(PROMPTS):
        await ask(body(number))
    for held, limit in zip(held_bytes(model), LIMITS.values(), strict=True):
        assert limit / 2 < held <= limit


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_a_million_distinct_prompts_leave_memory_flat(tiny_model: Path) -> None:
    """Or as many as KVIST_PROMPTS says: in the second half of them every cache is full."""
    model = load_model(tiny_model, name="tiny", max_model_len=4096, rules=Rules(), parsers=PLAIN)
    grown = await grown_bytes(model, int(os.environ.get("KVIST_PROMPTS", "1000000")))
    limits = SEGMENT_CACHE_BYTES + THREAD_MEMORY_BYTES + TURN_MEMORY_BYTES
    print(f"grown by {grown / 2**20:.1f} MiB; limits are {limits / 2**20:.0f} MiB")
    assert grown < limits / 10
    assert sum(held_bytes(model)) <= limits
