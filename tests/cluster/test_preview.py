"""How replicas stand for a request, without sending it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import pytest

from cluster.models.served import ServedModel
from router.limits import WARM_BODY_BYTES
from router.policy import Score
from tests.cluster.support import REPLICA

if TYPE_CHECKING:
    from cluster.api.outline import Outline
    from cluster.prompt.warm_path import Asked
    from tests.cluster.support import Service


@pytest.mark.anyio
async def test_a_preview_says_how_replicas_stand_and_sends_nothing(service: Service) -> None:
    """The same body as the endpoint's, under /kvist/preview; nothing reaches an engine."""
    body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
    async with aiohttp.ClientSession(service.url) as http:
        answer = await (await http.post("/kvist/preview/v1/messages", json=body)).json()
        bad = await http.post("/kvist/preview/v1/messages", json={})
    assert answer["prompt_tokens"] > 0
    (shown,) = answer["replicas"]
    assert shown == Score(REPLICA, 0.5, cached_tokens=8, backlog_tokens=7)._asdict()
    assert (bad.status, service.engine.generations) == (400, [])


@pytest.mark.anyio
async def test_a_body_beyond_warm_body_bytes_is_read_as_a_whole_in_threads(
    served: ServedModel, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WARM_BODY_BYTES bounds what an outline may cost the event loop; the answer is the same."""
    asked: list[object] = []

    def noted(outline: Outline, tenant: str) -> Asked:
        asked.append(outline)
        return ServedModel.asked(served, outline, tenant)

    monkeypatch.setattr(served, "asked", noted)
    body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
    async with aiohttp.ClientSession(service.url) as http:
        for padding in ("", "x" * WARM_BODY_BYTES):
            assert (await http.post("/v1/messages", json={**body, "metadata": {"x": padding}})).status == 200
    assert len(asked) == 1
    assert service.backend.jobs[0].tokens == service.backend.jobs[1].tokens
