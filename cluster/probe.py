"""Ask a running cluster's own HTTP endpoint how it is; used while waiting for it, before and without Ray."""

from __future__ import annotations

import http.client
import json
import time
from typing import TYPE_CHECKING, Any, Final

from router.errors import ReplicaDied

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.config import ClusterConfig

WARM_LIMIT_S: Final = 1800.0
POLL_S: Final = 0.25
REQUEST_LIMIT_S: Final = 10.0
EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound


def url_of(config: ClusterConfig) -> str:
    """Where a client on this machine reaches the cluster."""
    return f"http://{reachable_host(config)}:{config.port}"


def reachable_host(config: ClusterConfig) -> str:
    return "127.0.0.1" if config.host in EVERY_ADDRESS else config.host


def wait_until_warm(
    config: ClusterConfig, *, still_alive: Callable[[], None], tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Block until `/healthz` counts every replica as routable; return what `/v1/models` says, nothing where the config
    has only digests of keys.

    `still_alive` is called between polls and raises when waiting has become pointless; `tell` hears of progress.
    """
    deadline = time.monotonic() + WARM_LIMIT_S
    said = ""
    while time.monotonic() < deadline:
        still_alive()
        health = get_json(config, "/healthz")
        now = str(health.get("detail", "starting"))
        if now != said:
            tell(now)
            said = now
        if health.get("warm"):
            if config.needs_key and config.known_key is None:
                return []
            models: list[dict[str, Any]] | None = get_json(config, "/v1/models").get("data")
            if models is None:
                raise ReplicaDied("the cluster is warm and does not list its models: does another one use its port?")
            return models
        time.sleep(POLL_S)
    raise ReplicaDied(f"not every replica was warm after {WARM_LIMIT_S:.0f} s; see the logs of Ray Serve")


def get_json(config: ClusterConfig, path: str) -> dict[str, Any]:
    """GET `path`; `{}` while nothing that speaks JSON answers there."""
    connection = http.client.HTTPConnection(reachable_host(config), config.port, timeout=REQUEST_LIMIT_S)
    headers = {"authorization": f"Bearer {config.known_key}"} if config.known_key else {}
    try:
        connection.request("GET", path, headers=headers)
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}
