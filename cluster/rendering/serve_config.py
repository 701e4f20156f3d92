"""The Serve config: what `serve deploy` and a RayService are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.app import APPLICATION

if TYPE_CHECKING:
    from cluster.config import ClusterConfig

KEEP_ALIVE_S: Final = 120
IMPORT_PATH: Final = "cluster.app:build"


def serve_config(config: ClusterConfig, *, host: str) -> dict[str, Any]:
    """The application with the cluster file as its arguments: limits, replicas and drain times come from there."""
    arguments = config.model_dump(mode="json", exclude={"deploy", "host", "port"}, exclude_defaults=True)
    opened = {"host": config.host, "port": config.port} if config.needs_key else {}
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": host, "port": config.port, "keep_alive_timeout_s": KEEP_ALIVE_S},
        "logging_config": {"encoding": "JSON", "log_level": "INFO", "enable_access_log": False},
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": IMPORT_PATH,
                "args": {**arguments, **opened},
            }
        ],
    }
