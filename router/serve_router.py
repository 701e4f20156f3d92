"""Ray Serve's request router for worker deployments: a call goes to the replicas its route names, in that order.

The choice was made before (router/fleet.py), in one step with its reservation; this adapter only carries it out.

What Serve 2.60 needs from it, each with a regression test (tests/e2e/test_serve_router.py):
* no FIFOMixin, or a replica chosen for one request is given to another;
* `should_backoff` on every request, and never an empty answer, or Serve spins without a pause;
* waiting calls matched by identity: calls made inside one HTTP request share `internal_request_id`;
* membership reached through its module: a global named here would be copied into the pickled class;
* `.remote()` on the caller's side: `choose_replica()/dispatch()` loses slots when clients leave early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from router import membership

if TYPE_CHECKING:
    from collections.abc import Callable

ROUTE_KWARG: Final = "_route"


class Route(msgspec.Struct, frozen=True):
    """Which replicas may take a call, best first, and whom to tell where it went."""

    candidates: tuple[str, ...]
    on_routed: Callable[[str], None] | None = None


class KvistRouter(RequestRouter):  # type: ignore[misc]
    """Carries out routes; a call without one, or whose candidates are all gone, may go to any replica."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of one replica each, in the route's order, then all others as the last rank. Never empty."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        route = _route_of(pending_request)
        if route is None:
            return [candidate_replicas]
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        ranked = [[by_id.pop(uid)] for uid in route.candidates if uid in by_id]
        return [*ranked, list(by_id.values())] if by_id else ranked

    def on_request_routed(self, pending_request: PendingRequest, replica_id: Any, result: Any) -> None:
        """Tell the caller which replica accepted."""
        del result
        route = _route_of(pending_request)
        if route is not None and route.on_routed is not None:
            route.on_routed(replica_id.unique_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Publish membership: unique id → the metadata that replica recorded when it became ready."""
        super().update_replicas(replicas)
        known = {replica.replica_id.unique_id: replica.replica_metadata for replica in replicas}
        membership.MEMBERSHIP.update(self._deployment_name, known)

    def on_replica_actor_died(self, replica_id: Any) -> None:
        super().on_replica_actor_died(replica_id)
        membership.MEMBERSHIP.died(self._deployment_name, replica_id.unique_id)

    @property
    def _deployment_name(self) -> str:
        return str(self._deployment_id.name)

    def _get_pending_request_matching_internal_request_id(self, request_metadata: Any = None) -> PendingRequest | None:
        # Sibling calls share the id, so the id finds only one of them; the metadata object is each call's own.
        for waiting in self._pending_requests_to_fulfill:
            if waiting.metadata is request_metadata and not waiting.future.done():
                return waiting
        return None


def _route_of(pending_request: PendingRequest) -> Route | None:
    """The call's route. Popped once, so the replica never sees it; kept, as retries come with the same object."""
    context = pending_request.routing_context
    if not hasattr(context, "kvist_route"):
        context.kvist_route = pending_request.kwargs.pop(ROUTE_KWARG, None)
    route: Route | None = context.kvist_route
    return route
