"""Deploy the graph on the Ray cluster this process is connected to, and wait until every replica is warm."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Final

from ray import serve
from ray.serve.api import RunTarget

from cluster.app import APPLICATION, build_application
from cluster.banner import banner
from cluster.probe import wait_until_warm
from router.errors import ReplicaDied

if TYPE_CHECKING:
    from cluster.config import ClusterConfig

_FAULT_LINE: Final = re.compile(r"[\w.]+(Error|Exception|Request|Died|NoReplica)\b.*: ")


def deploy_and_announce(config: ClusterConfig) -> None:
    """Deploy, wait, print the banner. Raises `ReplicaDied` with the reason when the application cannot start."""
    deploy(config)
    models = wait_until_warm(config, still_alive=_raise_if_failed, tell=_tell)
    print(banner(config, models), flush=True)


def deploy(config: ClusterConfig) -> None:
    """Hand the graph to Serve; returns before replicas are up."""
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(proxy_location="EveryNode", http_options={"host": config.host, "port": config.port})
    target = RunTarget(target=build_application(config), name=APPLICATION, route_prefix="/")
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def _raise_if_failed() -> None:
    application = serve.status().applications.get(APPLICATION)
    if application is not None and application.status.value in {"DEPLOY_FAILED", "UNHEALTHY"}:
        reasons = [deployment.message for deployment in application.deployments.values() if deployment.message]
        raise ReplicaDied(f"the cluster cannot start: {_last_words(reasons or [application.message])}")


def _last_words(messages: list[str]) -> str:
    """The last line of a traceback says what went wrong; the rest is in Serve's logs."""
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    faults = [line for line in lines if _FAULT_LINE.match(line)]
    return (faults or lines or ["no reason was given"])[-1]


def _tell(progress: str) -> None:
    print(f"kvist: {progress}", file=sys.stderr, flush=True)
