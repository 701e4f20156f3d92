"""`kvist swarm --local N`: the cluster of simulated replicas that is put under load."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cluster.demo import running

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL_MODEL: Final = "smollm2"
STEP_S: Final = 0.02
"""Of a simulated engine: many replicas share a machine, and each step costs some of it."""
PREFILL_TOKEN_S: Final = 0.000_1
POOL_BLOCKS: Final = 65_536
WINDOW: Final = 131_072
AT_ONCE: Final = 1_024


@contextmanager
def local_swarm_cluster(replicas: int, **engine_args: Any) -> Iterator[str]:
    """A warm cluster of `replicas` simulated engines on loopback, ended on the way out. Yields its URL."""
    model = {
        "name": LOCAL_MODEL,
        "source": LOCAL_MODEL,
        "replicas": replicas,
        "engine": "sim",
        "max_ongoing_requests": AT_ONCE,
        "engine_args": {
            "step_s": STEP_S,
            "prefill_token_s": PREFILL_TOKEN_S,
            "pool_blocks": POOL_BLOCKS,
            "max_model_len": WINDOW,
            **engine_args,
        },
    }
    with running([model]) as url:
        yield url
