"""Limits of what a client can make the ingress keep, and of how long it leaves a client without a word."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import httpx
import pytest

from cluster.ingress import build_app
from cluster.models import served as served_module
from cluster.models.served import load_model
from cluster.prompt.canonical import Rules
from router.limits import MAX_HINT_CHARS, PING_INTERVAL_S

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.support import Service

pytestmark = pytest.mark.anyio
LONG = "x" * 10 * MAX_HINT_CHARS


async def test_max_hint_chars_stops_a_client_from_filling_logs_with_its_headers_and_names(service: Service) -> None:
    """MAX_HINT_CHARS of a user agent, a session id and a model's name are kept and repeated, of however many."""
    headers = {"user-agent": LONG, "session-id": LONG}
    ask = {"model": LONG, "messages": [{"role": "user", "content": "hello"}]}
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as http:
        answer = await http.post("/v1/chat/completions", headers=headers, json=ask)
    report = await service.ended()
    assert answer.status_code == 404
    assert answer.text.count("x" * MAX_HINT_CHARS) == 1
    assert "x" * (MAX_HINT_CHARS + 1) not in answer.text
    assert (len(report.client), len(report.session)) == (MAX_HINT_CHARS, MAX_HINT_CHARS)


async def test_segment_cache_bytes_stops_prompts_from_filling_memory(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEGMENT_CACHE_BYTES bounds what a model remembers of prompts; the oldest is forgotten first."""
    limit = 20_000
    monkeypatch.setattr(served_module, "SEGMENT_CACHE_BYTES", limit)
    served = load_model(tiny_model, name="tiny", max_model_len=4096, rules=Rules())
    for turn in range(60):
        await served.tokens(f"prompt {turn} " + "word " * 100)
    cache = served._segmenter._cache
    cache.check_integrity()
    assert limit / 2 < cache._bytes <= limit
    assert "prompt 59" in list(cache.segments())[-1]


def test_ping_interval_s_stops_what_is_between_from_ending_a_silent_stream() -> None:
    """PING_INTERVAL_S is how the app is built unless told otherwise; a minute of silence is what proxies end."""
    assert inspect.signature(build_app).parameters["pacing"].default.ping_interval_s == PING_INTERVAL_S
    assert PING_INTERVAL_S <= 60 / 4
