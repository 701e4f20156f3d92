"""Keys to tenants."""

from __future__ import annotations

import pytest

from cluster.tenants import DEFAULT_TENANT, Tenant, Tenants
from router.errors import Unauthorized


def test_without_keys_everybody_is_the_default_tenant() -> None:
    assert Tenants().authenticate(api_key="anything", authorization="") == DEFAULT_TENANT


def test_each_key_opens_its_own_tenant_in_either_header() -> None:
    first, second = Tenant("first", "salt-1"), Tenant("second", "salt-2")
    tenants = Tenants({"k1": first, "k2": second})
    assert tenants.authenticate(api_key="k1", authorization="") == first
    assert tenants.authenticate(api_key="", authorization="bearer k2 ") == second
    assert "k1" not in repr(tenants)


def test_of_two_headers_either_may_be_right() -> None:
    first, second = Tenant("first", "salt-1"), Tenant("second", "salt-2")
    tenants = Tenants({"k1": first, "k2": second})
    assert tenants.authenticate(api_key="stale", authorization="Bearer k2") == second
    assert tenants.authenticate(api_key="k1", authorization="Bearer stale") == first
    assert tenants.authenticate(api_key="k1", authorization="Bearer k2") == first


@pytest.mark.parametrize(
    ("api_key", "authorization"), [("", ""), ("k", ""), ("", "Bearer k"), ("", "Basic k1"), ("k", "Bearer k")]
)
def test_anything_else_is_refused(api_key: str, authorization: str) -> None:
    with pytest.raises(Unauthorized):
        Tenants.sharing_default(["k1"]).authenticate(api_key=api_key, authorization=authorization)
