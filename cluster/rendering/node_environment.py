"""What every node's Ray needs in its environment, as manifests say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster.ray_env import NODE_ENVIRONMENT

if TYPE_CHECKING:
    from cluster.config import ClusterConfig

HAPROXY_WRAPPER_PATH: Final = "/opt/kvist/haproxy.sh"  # made when the image is built
TOKEN_PATH: Final = "/home/ray/.ray/auth_token"  # noqa: S105 - where Ray looks for it


def node_environment(config: ClusterConfig) -> dict[str, str]:
    """The table of `cluster.ray_env`, this cluster's cache folder, and the HAProxy of the image."""
    return {
        **NODE_ENVIRONMENT,
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(max(3600, round(config.drain_s))),
        "RAY_SERVE_HAPROXY_BINARY_PATH": HAPROXY_WRAPPER_PATH,
        "KVIST_CACHE": config.deploy.cache_dir,
    }
