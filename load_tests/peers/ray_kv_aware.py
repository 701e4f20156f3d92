"""Ray 2.60's own router for KV caches, `ray.serve.llm.request_router.KVAwareRouter`, over vLLM replicas on CPUs.

An application of Ray's own `build_openai_app`, in an environment of its own (`make_ray_kv_aware.sh`): HAProxy asks the
router, which tokenises the chat request and lets Dynamo's SelectionService choose, and sends the request on to the
chosen replica. It serves the chat API; the Messages API that vLLM has besides is placed without its tokens.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from load_tests.peers.children import Children, chat_fault
from load_tests.peers.environment import interpreter_of
from load_tests.peers.ports import free_block, free_port
from load_tests.peers.running import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = "ray-kv-aware"
APPLICATION: Final = Path(__file__).with_name("ray_kv_aware_app.py")
READY_LIMIT_S: Final = 1_800.0


@contextlib.contextmanager
def ray_kv_aware(
    model_folder: Path, folder: Path, *, lab: Path, model: str, replicas: int, engine_args: dict[str, Any]
) -> Iterator[Running]:
    """Run it until the end of the block. Logs go to `folder`. Raises `PeerMissing`, `PeerFailed`."""
    python = interpreter_of(NAME, lab)
    port = free_port()
    url, log = f"http://127.0.0.1:{port}", folder / f"{NAME}-application.log"
    with tempfile.TemporaryDirectory(prefix="kv-", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        settings = {
            "model": model,
            "folder": str(model_folder),
            "port": port,
            "first_port": free_block().start,
            "replicas": replicas,
            "scratch": scratch,
            "engine_args": engine_args,
        }
        with Children(NAME, folder) as children:
            # -P: a script's folder comes first in the path of every process of Ray, and here it holds a `dynamo`.
            command = [str(python), "-P", str(APPLICATION), json.dumps(settings)]
            children.start("application", command, os.environ)
            children.wait_until(lambda: _missing(log, url, model), limit_s=READY_LIMIT_S)
            yield Running(NAME, url, model)


def _missing(log: Path, url: str, model: str) -> str:
    if "ready" not in log.read_text(errors="replace").splitlines():
        return "the application does not say that it is ready"
    return chat_fault(url, model)
