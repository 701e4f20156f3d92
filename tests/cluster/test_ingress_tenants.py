"""What tenants of one cluster get from the HTTP side, and what they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from cluster.tenants import Tenant, TenantLimits, Tenants
from tests.cluster.support import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster.models.served import ServedModel
    from tests.cluster.support import Service

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
LIMITED = Tenant("limited", "salt-1", TenantLimits(requests_per_minute=2, concurrent_requests=1))
FREE = Tenant("free", "salt-2")
BOSS = Tenant("boss", "salt-3", admin=True)


@pytest.fixture
async def service(served: ServedModel) -> AsyncIterator[Service]:
    tenants = Tenants({"limited": LIMITED, "free": FREE, "boss": BOSS})
    async with serving({"tiny": served}, tenants) as running:
        yield running


@pytest.fixture
async def http(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as client:
        yield client


async def test_who_asks_too_often_is_told_when_to_come_back_in_both_protocols(
    service: Service, http: httpx.AsyncClient
) -> None:
    headers = {"x-api-key": "limited"}
    for _ in range(2):
        assert (await http.post("/v1/messages", json=ASK, headers=headers)).status_code == 200
    refused = await http.post("/v1/messages", json=ASK, headers=headers)
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    refused = await http.post("/v1/chat/completions", json=ASK, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert (await service.ended(4)).outcome == "rejected_capacity"
    assert len(service.backend.jobs) == 2, "what is refused reaches no replica"
    assert (await http.post("/v1/messages", json=ASK, headers={"x-api-key": "free"})).status_code == 200


async def test_a_stream_counts_until_it_has_ended(service: Service, http: httpx.AsyncClient) -> None:
    headers = {"x-api-key": "limited"}
    service.engine.endless = True
    async with http.stream("POST", "/v1/messages", json=ASK | {"stream": True}, headers=headers) as stream:
        assert stream.status_code == 200
        await anext(stream.aiter_lines())
        refused = await http.post("/v1/messages", json=ASK, headers=headers)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    await service.ended(2)
    service.engine.endless = False
    assert (await http.post("/v1/messages", json=ASK, headers=headers)).status_code == 200


async def test_each_tenants_salt_goes_with_its_prompts(service: Service, http: httpx.AsyncClient) -> None:
    """And nobody can send another."""
    for key in ("free", "boss"):
        await http.post("/v1/chat/completions", json=ASK, headers={"x-api-key": key})
        stolen = await http.post(
            "/v1/chat/completions", json=ASK | {"cache_salt": "salt-1"}, headers={"x-api-key": key}
        )
        assert stolen.status_code == 400
    assert [job.tenant.salt for job in service.backend.jobs] == ["salt-2", "salt-3"]


async def test_only_an_admin_sees_what_concerns_everybody(http: httpx.AsyncClient) -> None:
    codes = [(await http.get("/kvist/status", headers={"x-api-key": key})).status_code for key in ("free", "boss")]
    assert codes == [403, 200]
    refused = await http.get("/kvist/status", headers={"x-api-key": "free"})
    assert "admin: true" in refused.json()["error"]["message"]
