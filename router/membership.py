"""Where the Serve router and the ingress of one process meet: who the replicas of a deployment are now.

Ray pickles a router class by value together with its module, so that module's globals are not those the ingress
imports. What both must share therefore lives here, in a module of its own, loaded once per process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Metadata = Mapping[str, Any]
Listener = Callable[[Mapping[str, Metadata]], None]


class Membership:
    """Replicas by unique id, with the metadata each published at its start, per deployment.

    Loop-confined: with Serve's router on the user's loop both sides run on one thread. A listener is called at once
    with what is known, and again after every change.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, dict[str, Metadata]] = {}
        self._listeners: dict[str, list[Listener]] = {}

    def watch(self, deployment: str, listener: Listener) -> None:
        """Call `listener` with the replicas of `deployment`, now and after each change."""
        self._listeners.setdefault(deployment, []).append(listener)
        listener(self._replicas.get(deployment, {}))

    def update(self, deployment: str, replicas: Mapping[str, Metadata]) -> None:
        """Replace the replicas of `deployment`; listeners hear of it only when something changed."""
        if self._replicas.get(deployment) == replicas:
            return
        self._replicas[deployment] = dict(replicas)
        self._tell(deployment)

    def died(self, deployment: str, replica: str) -> None:
        """Drop one replica at once, before the controller's next broadcast says so."""
        if self._replicas.get(deployment, {}).pop(replica, None) is not None:
            self._tell(deployment)

    def _tell(self, deployment: str) -> None:
        for listener in self._listeners.get(deployment, []):
            listener(self._replicas[deployment])


MEMBERSHIP: Final = Membership()
"""The one shared object of this process, for the reason given above."""
