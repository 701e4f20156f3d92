"""The process that owns a cluster of one machine: starts Ray, deploys, waits until warm, prints the banner, stays.

    python -m cluster.driver SCRATCH        (SCRATCH/config.json holds the config)

Started by the supervisor, which ends it and everything below it.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from cluster.config import ClusterConfig, parse_config
from cluster.faults import report_fault
from cluster.ports import free_block, free_port
from cluster.ray_env import apply_local_environment, apply_node_environment
from router.errors import KvistError, ReplicaDied

OBJECT_STORE_BYTES = 128 * 2**20
LOGICAL_CPUS = 16
RAY_START_ATTEMPTS = 3


def start_ray(scratch: Path) -> None:
    """A local cluster on loopback, with a token of its own. CPUs are logical: replicas take fractions of them."""
    apply_node_environment()
    apply_local_environment(scratch, replica_ports=free_block(), metrics_port=free_port(), stats_port=free_port())
    import ray  # noqa: PLC0415 - reads the environment set above when it is imported

    for attempt in range(RAY_START_ATTEMPTS):
        try:
            ray.init(
                address="local",
                num_cpus=LOGICAL_CPUS,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _temp_dir=str(scratch),
            )
        except Exception as fault:  # Ray raises a plain Exception when its node was not up in 30 s
            ray.shutdown()
            if attempt + 1 == RAY_START_ATTEMPTS:
                raise ReplicaDied(f"Ray does not start: {fault}") from fault
        else:
            return


def main() -> None:
    """Serve until ended."""
    scratch = Path(sys.argv[1])
    config: ClusterConfig = parse_config(json.loads((scratch / "config.json").read_text(encoding="utf-8")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        start_ray(scratch)
        from cluster.deploy import deploy_and_announce  # noqa: PLC0415 - imports Ray, after its environment is set

        deploy_and_announce(config)
    except KvistError as fault:
        raise SystemExit(report_fault(fault)) from None
    signal.pause()


if __name__ == "__main__":
    main()
