"""Who is asking: API keys to tenants."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

import msgspec

from router.errors import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Tenant(msgspec.Struct, frozen=True):
    """A party whose cached blocks nobody else may hit. `salt` goes into block hashes and the engine's own keys."""

    id: str
    salt: str = ""


DEFAULT_TENANT = Tenant("default")


class Tenants:
    """Keys and whom they stand for; without any key everybody is the default tenant.

    `authenticate` compares with every key in constant time: how long it takes says nothing about how close a guess is.
    """

    def __init__(self, keys: Mapping[str, Tenant] | None = None) -> None:
        self._by_digest = tuple((_digest(key), tenant) for key, tenant in (keys or {}).items())

    @classmethod
    def sharing_default(cls, keys: Iterable[str]) -> Tenants:
        """All `keys` open the one default tenant."""
        return cls(dict.fromkeys(keys, DEFAULT_TENANT))

    def authenticate(self, *, api_key: str, authorization: str) -> Tenant:
        """The tenant of the `x-api-key` or `Authorization: Bearer` header ("" = not sent). Raises `Unauthorized`.

        Clients may send both, of which one is a leftover of their settings: the first that is right counts.
        """
        if not self._by_digest:
            return DEFAULT_TENANT
        keys = [key for key in (api_key, _bearer(authorization)) if key]
        if not keys:
            raise Unauthorized("no API key: send it as x-api-key or as Authorization: Bearer")
        found = [tenant for tenant in map(self._tenant_of, keys) if tenant is not None]
        if not found:
            raise Unauthorized("invalid API key")
        return found[0]

    def _tenant_of(self, key: str) -> Tenant | None:
        digest, found = _digest(key), None
        for known, tenant in self._by_digest:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found

    def __repr__(self) -> str:
        return f"Tenants({len(self._by_digest)} keys)"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _bearer(authorization: str) -> str:
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
