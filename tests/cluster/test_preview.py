"""How replicas stand for a request, without sending it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.cluster.support import REPLICA

if TYPE_CHECKING:
    from tests.cluster.support import Service


@pytest.mark.anyio
async def test_a_preview_says_how_replicas_stand_and_sends_nothing(service: Service) -> None:
    """The same body as the endpoint's, under /kvist/preview; nothing reaches an engine."""
    body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
    async with aiohttp.ClientSession(service.url) as http:
        answer = await (await http.post("/kvist/preview/v1/messages", json=body)).json()
        bad = await http.post("/kvist/preview/v1/messages", json={})
    assert answer["prompt_tokens"] > 0
    assert answer["replicas"] == [{"replica": REPLICA, "cost_s": 0.5, "cached_tokens": 8, "backlog_tokens": 7}]
    assert (bad.status, service.engine.generations) == (400, [])
