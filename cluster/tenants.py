"""Who is asking: API keys to tenants. Of a key only its SHA-256 digest is kept."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Final, Self

import msgspec

from cluster.quotas import Quotas
from router.errors import InvalidRequest, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DIGEST_PREFIX: Final = "sha256:"
SALT_ID_BYTES: Final = 8  # of the length before a tenant's id, so that no two ids can run into each other


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one tenant may ask of the whole cluster; None is without end."""

    requests_per_minute: int | None = None
    prompt_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None


class Tenant(msgspec.Struct, frozen=True):
    """A party whose cached blocks nobody else may hit. `salt` goes into block hashes and the engine's own keys. Only an
    `admin` is shown what concerns all tenants."""

    id: str
    salt: str = ""
    limits: TenantLimits = TenantLimits()
    admin: bool = False


DEFAULT_TENANT = Tenant("default", admin=True)


class Tenants:
    """Keys and whom they stand for; without any key everybody is the default tenant.

    `quotas` are what they have used of their limits, in one of `ingresses`.
    `authenticate` compares with every key in constant time: how long it takes says nothing about how close a guess is.
    """

    def __init__(self, keys: Mapping[str, Tenant] | None = None, *, ingresses: int = 1) -> None:
        self.quotas = Quotas(ingresses=ingresses)
        self._by_digest = tuple((digest_of(key), tenant) for key, tenant in (keys or {}).items())

    @classmethod
    def sharing_default(cls, keys: Iterable[str], *, ingresses: int = 1) -> Self:
        """All `keys` open the one default tenant. A key may stand there as its digest, `sha256:` and 64 hex digits."""
        return cls(dict.fromkeys(keys, DEFAULT_TENANT), ingresses=ingresses)

    def adopt(self, other: Tenants) -> None:
        """From now on the keys of `other`, and no other key, are known."""
        self._by_digest = other._by_digest

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
        digest, found = hashlib.sha256(key.encode()).digest(), None
        for known, tenant in self._by_digest:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found

    def __repr__(self) -> str:
        return f"Tenants({len(self._by_digest)} keys)"


def digest_of(key: str) -> bytes:
    """What is kept of a key. One that begins with `sha256:` is a digest already: `InvalidRequest` if it is none."""
    if not key.startswith(DIGEST_PREFIX):
        return hashlib.sha256(key.encode()).digest()
    if not re.fullmatch(r"[0-9a-f]{64}", key.removeprefix(DIGEST_PREFIX)):
        raise InvalidRequest(f"a key that begins with {DIGEST_PREFIX} must go on with 64 small hex digits")
    return bytes.fromhex(key.removeprefix(DIGEST_PREFIX))


def hashed(key: str) -> str:
    """The written form of a key's digest."""
    return DIGEST_PREFIX + digest_of(key).hex()


def salt_of(tenant_id: str, secret: bytes) -> str:
    """HMAC-SHA256 of the length-prefixed id, as hex: who does not know `secret` cannot make another tenant's hashes."""
    raw = tenant_id.encode()
    return hmac.new(secret, len(raw).to_bytes(SALT_ID_BYTES, "big") + raw, hashlib.sha256).hexdigest()


def _bearer(authorization: str) -> str:
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
