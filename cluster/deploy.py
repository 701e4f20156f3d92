"""Deploy the graph on the Ray cluster this process is connected to, and wait until every replica is warm."""

from __future__ import annotations

import http.client
import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from ray import serve
from ray.serve.api import RunTarget

from cluster.app import APPLICATION, build_application
from cluster.banner import banner
from router.errors import ReplicaDied

if TYPE_CHECKING:
    from cluster.config import ClusterConfig

WARM_LIMIT_S: Final = 1800.0
POLL_S: Final = 0.25


def deploy_and_announce(config: ClusterConfig) -> None:
    """Deploy, wait, print the banner. Raises `ReplicaDied` with the reason when the application cannot start."""
    deploy(config)
    models = wait_until_warm(config)
    print(banner(config, models), flush=True)


def deploy(config: ClusterConfig) -> None:
    """Hand the graph to Serve; returns before replicas are up."""
    serve.start(
        proxy_location="EveryNode", http_options={"host": config.host, "port": config.port, "keep_alive_timeout_s": 90}
    )
    target = RunTarget(target=build_application(config), name=APPLICATION, route_prefix="/")
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def wait_until_warm(config: ClusterConfig) -> list[dict[str, Any]]:
    """Block until `/healthz` counts every replica as routable; return what `/v1/models` says."""
    deadline = time.monotonic() + WARM_LIMIT_S
    said = ""
    while time.monotonic() < deadline:
        _raise_if_failed()
        health = _get(config, "/healthz")
        said = _tell_progress(health, said)
        if health.get("warm"):
            models: list[dict[str, Any]] = _get(config, "/v1/models")["data"]
            return models
        time.sleep(POLL_S)
    raise ReplicaDied(f"not every replica was warm after {WARM_LIMIT_S:.0f} s; see the logs of Ray Serve")


def _tell_progress(health: dict[str, Any], said: str) -> str:
    now = str(health.get("detail", "starting"))
    if now != said:
        print(f"kvist: {now}", file=sys.stderr, flush=True)
    return now


def _raise_if_failed() -> None:
    application = serve.status().applications.get(APPLICATION)
    if application is not None and application.status.value in {"DEPLOY_FAILED", "UNHEALTHY"}:
        raise ReplicaDied(f"the application cannot start: {application.message}")


def _get(config: ClusterConfig, path: str) -> dict[str, Any]:
    """GET from the endpoint; `{}` while nothing answers there yet."""
    host = "127.0.0.1" if config.host in {"0.0.0.0", "::"} else config.host  # noqa: S104 - compared, not bound
    connection = http.client.HTTPConnection(host, config.port, timeout=10.0)
    headers = {"authorization": f"Bearer {config.api_keys[0]}"} if config.api_keys else {}
    try:
        connection.request("GET", path, headers=headers)
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}
