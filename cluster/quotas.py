"""What each tenant still may ask for: requests and prompt tokens per minute, and requests at once.

Each rate is a bucket that holds a minute's worth and refills evenly. A prompt may overdraw the tokens (its length is
known only when it has been read); then nothing more passes until the bucket is above zero again. Several ingresses
share nothing: each grants its part of every limit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from router.errors import KvistBug, RateLimited

if TYPE_CHECKING:
    from cluster.tenants import Tenant

MINUTE_S: Final = 60.0
BUSY_RETRY_S: Final = 1.0


class _Account(msgspec.Struct):
    running: int = 0
    requests: float = 0.0  # spent of the bucket; 0 is a full one
    tokens: float = 0.0
    seen_s: float = 0.0


class Quotas:
    """Accounts of all tenants that have asked. Confined to one thread; `now` never decreases."""

    def __init__(self, *, ingresses: int = 1) -> None:
        self._ingresses = ingresses
        self._accounts: dict[str, _Account] = {}

    def __repr__(self) -> str:
        return f"<Quotas tenants={len(self._accounts)} running={sum(one.running for one in self._accounts.values())}>"

    def enter(self, tenant: Tenant, now: float) -> None:
        """Count a request that begins, or raise `RateLimited`. Each one counted must `leave` once. O(1)."""
        account, limits = self._refilled(tenant, now), tenant.limits
        if limits.concurrent_requests is not None and account.running >= self._part(limits.concurrent_requests):
            raise RateLimited(
                f"{limits.concurrent_requests} requests of {tenant.id} are running", retry_after_s=BUSY_RETRY_S
            )
        self._check(account.requests + 1, limits.requests_per_minute, f"requests per minute of {tenant.id}")
        self._check(account.tokens, limits.prompt_tokens_per_minute, f"prompt tokens per minute of {tenant.id}")
        account.requests += limits.requests_per_minute is not None
        account.running += 1

    def spend(self, tenant: Tenant, prompt_tokens: int, now: float) -> None:
        """Take the tokens of a request that has entered."""
        if tenant.limits.prompt_tokens_per_minute is not None:
            self._refilled(tenant, now).tokens += prompt_tokens

    def leave(self, tenant: Tenant) -> None:
        """A request that entered has ended."""
        account = self._accounts[tenant.id]
        account.running -= 1
        if account.running < 0:
            raise KvistBug(f"more requests of {tenant.id} ended than began")
        limits = tenant.limits
        if not account.running and limits.requests_per_minute is None and limits.prompt_tokens_per_minute is None:
            del self._accounts[tenant.id]

    def _refilled(self, tenant: Tenant, now: float) -> _Account:
        account = self._accounts.setdefault(tenant.id, _Account(seen_s=now))
        elapsed_s, account.seen_s = now - account.seen_s, now
        limits = tenant.limits
        account.requests = self._after(account.requests, limits.requests_per_minute, elapsed_s)
        account.tokens = self._after(account.tokens, limits.prompt_tokens_per_minute, elapsed_s)
        return account

    def _after(self, spent: float, per_minute: int | None, elapsed_s: float) -> float:
        return 0.0 if per_minute is None else max(0.0, spent - elapsed_s * per_minute / self._ingresses / MINUTE_S)

    def _check(self, spent: float, per_minute: int | None, what: str) -> None:
        """Raise when `spent` is over a minute's worth, with the time until it will not be."""
        if per_minute is None:
            return
        part = max(per_minute / self._ingresses, 1.0)
        if spent > part:
            retry_after_s = (spent - part) * MINUTE_S * self._ingresses / per_minute
            raise RateLimited(f"more than {per_minute} {what}", retry_after_s=retry_after_s)

    def _part(self, limit: int) -> int:
        return math.ceil(limit / self._ingresses)
