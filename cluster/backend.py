"""What the ingress needs from the rest of the cluster: tokens in, a routed stream of token deltas out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster.prompt.warm_path import Prefix
    from cluster.tenants import Tenant
    from router.policy import Score
    from workers.engine import Sampling, TokenDelta


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to continue. `tokens` are packed u32, little-endian; `model` is a key of the ingress's models.

    `prefix` is what is known of the prompt: it saves hashing that part again. The last `resumed_tokens` of the prompt
    were generated for it already, on a replica that failed."""

    request_id: str
    model: str
    tokens: bytes
    sampling: Sampling
    tenant: Tenant
    session: str = ""
    prefix: Prefix | None = None
    resumed_tokens: int = 0


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """The choice: who serves it, and how many prompt tokens it is believed to hold already. `hash_s` of the time that
    choosing took went into hashing; `queue_s` is how long a replica had to be waited for, None while it is. Before it
    the generation was `failed_on` other replicas: it was attempted again `retries` times before its first token, and
    went on `resumes` times after it."""

    replica: str
    predicted_cached_tokens: int
    hash_s: float = 0.0
    queue_s: float | None = None
    retries: int = 0
    resumes: int = 0
    failed_on: tuple[str, ...] = ()


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How the cluster is, for probes and people. `ready`: every model has a routable replica; `warm`: every configured
    replica is routable and its blocks are known. `replicas` are plain data, one entry each."""

    ready: bool
    warm: bool
    detail: str
    replicas: list[dict[str, Any]] = msgspec.field(default_factory=list)


class TokenStream(Protocol):
    """One running generation. Iterated once; its last delta has a finish reason.

    Iteration raises `NoReplica`, `ReplicaError` or `InvalidRequest`, before or after deltas.
    """

    @property
    def routed(self) -> Routed | None:
        """The choice as known now: normally set when `start` returns, true for sure from the first delta on."""
        ...

    def __aiter__(self) -> AsyncIterator[TokenDelta]: ...

    async def aclose(self) -> None:
        """Abort what still runs and free its blocks. Safe at any time, also twice and while a delta is awaited
        elsewhere has been cancelled."""
        ...


class Backend(Protocol):
    """Routes jobs to replicas. All methods are called on one event loop."""

    def start(self, job: Job, *, exclude: frozenset[str] = frozenset()) -> TokenStream:
        """Choose a replica outside `exclude` and reserve on it, in one synchronous step. Raises `NoReplica`."""
        ...

    def preview(self, job: Job) -> tuple[Score, ...]:
        """How every routable replica stands for a job now, best first; nothing is reserved. Raises `NoReplica`."""
        ...

    def health(self) -> Health:
        """How it is now. Cheap; never waits."""
        ...
