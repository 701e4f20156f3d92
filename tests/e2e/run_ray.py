"""Keep a bare Ray cluster running: `python -m tests.e2e.run_ray SCRATCH`, below a supervisor.

Writes what another process needs to join it to SCRATCH/environment.yaml.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import yaml

from cluster.driver import start_ray


def main() -> None:
    scratch = Path(sys.argv[1])
    start_ray(scratch)
    import ray

    names = [name for name in os.environ if name.startswith(("RAY_", "VLLM_"))]
    environment = {name: os.environ[name] for name in names}
    environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    (scratch / "environment.tmp").write_text(yaml.safe_dump(environment))
    (scratch / "environment.tmp").rename(scratch / "environment.yaml")
    signal.pause()


if __name__ == "__main__":
    main()
