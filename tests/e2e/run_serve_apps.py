"""Serve the regression applications: `python -m tests.e2e.run_serve_apps SCRATCH PORT`, below a supervisor."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from cluster.driver import start_ray


def main() -> None:
    scratch, port = Path(sys.argv[1]), int(sys.argv[2])
    start_ray(scratch)
    from ray import serve

    from tests.e2e import data_app, serve_apps

    serve.start(proxy_location="EveryNode", http_options={"host": "127.0.0.1", "port": port})
    serve.run(data_app.build(), name=data_app.APPLICATION, route_prefix="/data")
    serve.run(serve_apps.build(), name="regressions", route_prefix="/")
    signal.pause()


if __name__ == "__main__":
    main()
