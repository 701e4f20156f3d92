"""What a cluster's own request log says of the requests that clients sent."""

from __future__ import annotations

import itertools
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e.processes import marked

if TYPE_CHECKING:
    from tests.e2e.cluster_process import ServeProcess

AT_ONCE = {"RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1"}  # else Serve keeps a thousand lines back
WARM = 0.97
_LINE = re.compile(r'\{"request": .*\}')
_PATIENCE_S = 10.0


def request_lines(cluster: ServeProcess, client: str, *, count: int, **fields: str) -> list[dict[str, Any]]:
    """The ended requests whose client's name contains `client` and whose fields are these, in order, as soon as there
    are `count`; what there is, if they do not come."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        lines = [line for line in _all_lines(cluster) if client in line["client"] and fields.items() <= line.items()]
        if len(lines) >= count or time.monotonic() > deadline:
            return lines
        time.sleep(0.1)


def _all_lines(cluster: ServeProcess) -> list[dict[str, Any]]:
    found = []
    for file in sorted(_scratch(cluster).glob("session_latest/logs/serve/replica_*Ingress*.log")):
        found += [json.loads(line) for line in _LINE.findall(file.read_text(encoding="utf-8"))]
    return found


def _scratch(cluster: ServeProcess) -> Path:
    """The cluster's own folder: the supervisor's first argument."""
    for command in marked(cluster.mark).values():
        words = command.split()
        if "cluster.supervisor" in words:
            return Path(words[words.index("cluster.supervisor") + 1])
    raise AssertionError("the cluster has no supervisor")


def assert_stays_warm(lines: list[dict[str, Any]]) -> None:
    """Every request after the first finds at least `WARM` of its predecessor's prompt in the cache."""
    for before, after in itertools.pairwise(lines):
        assert after["cached_tokens"] >= WARM * before["prompt_tokens"], (before, after)
