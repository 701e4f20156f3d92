"""The file of tenants: digests of their keys, their limits, and the secret that keeps their caches apart.

salt_secret: 64 hex digits
tenants:
- id: team-a
  keys: ["sha256:…"]              # made by `kvist keys add`; the key itself is shown once and kept nowhere
  requests_per_minute: 600        # each limit may be left out
  prompt_tokens_per_minute: 20000000
  concurrent_requests: 64
  admin: true                     # may see `kvist status`
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import yaml

from cluster.tenants import Tenant, TenantLimits, Tenants, salt_of
from router.errors import InvalidRequest
from router.limits import MAX_KEYS_PER_TENANT, MAX_TENANTS

SECRET_BYTES: Final = 32

TenantId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
Limit = Annotated[int, msgspec.Meta(ge=1)] | None


class TenantEntry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One tenant as the file has it."""

    id: TenantId
    keys: Annotated[list[Digest], msgspec.Meta(max_length=MAX_KEYS_PER_TENANT)] = []
    requests_per_minute: Limit = None
    prompt_tokens_per_minute: Limit = None
    concurrent_requests: Limit = None
    admin: bool = False

    def tenant(self, secret: bytes) -> Tenant:
        """As requests are counted and salted."""
        limits = TenantLimits(
            requests_per_minute=self.requests_per_minute,
            prompt_tokens_per_minute=self.prompt_tokens_per_minute,
            concurrent_requests=self.concurrent_requests,
        )
        return Tenant(self.id, salt_of(self.id, secret), limits, self.admin)


class TenantFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All of the file."""

    salt_secret: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    tenants: Annotated[list[TenantEntry], msgspec.Meta(max_length=MAX_TENANTS)] = []

    def known(self) -> Tenants:
        """The tenants by their keys. Raises `InvalidRequest` when there is no key at all, or one opens two tenants."""
        secret = bytes.fromhex(self.salt_secret)
        keys: dict[str, Tenant] = {}
        for entry in self.tenants:
            twice = [key for key in entry.keys if key in keys]
            if twice or sum(other.id == entry.id for other in self.tenants) > 1:
                raise InvalidRequest(f"tenant {entry.id}: its id or one of its keys stands twice")
            keys |= dict.fromkeys(entry.keys, entry.tenant(secret))
        if not keys:
            raise InvalidRequest("no tenant has a key: make one with `kvist keys add`")
        return Tenants(keys)


def read_tenants(path: Path) -> TenantFile:
    """The file at `path`. Raises `InvalidRequest` with the file, the place and what is wrong."""
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return msgspec.convert(data, TenantFile)
    except OSError as fault:
        raise InvalidRequest(f"{path}: cannot be read ({fault.strerror})") from fault
    except yaml.YAMLError as fault:
        raise InvalidRequest(f"{path}: is not YAML: {fault}") from fault
    except (msgspec.ValidationError, UnicodeDecodeError) as fault:
        raise InvalidRequest(f"{path}: {fault}") from fault


def write_tenants(path: Path, file: TenantFile) -> None:
    """Replace the file in one step: readers see the old one or the new one. Only its owner may read it, as `mkstemp`
    makes files."""
    text = yaml.safe_dump(msgspec.to_builtins(file), sort_keys=False)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
