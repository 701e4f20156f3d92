"""Real command-line clients, each run with an empty home of its own and nothing but loopback to talk to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).parents[3]
INSTALL_LIMIT_S, RUN_LIMIT_S = 240.0, 90.0
NOWHERE = "http://127.0.0.1:9"  # the discard port: a proxy that answers nobody


def clients_folder() -> Path:
    return Path(os.environ.get("KVIST_CLIENTS", Path.home() / ".cache" / "kvist" / "clients"))


def install() -> str:
    """Put the clients where they are not yet; why that failed, else ""."""
    command = ["bash", str(REPOSITORY / "deploy" / "make_clients.sh"), str(clients_folder())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"they were not installed after {INSTALL_LIMIT_S} s"
    return "" if done.returncode == 0 else done.stderr.strip()[-1000:]


def program(name: str) -> Path:
    """The installed program, whatever its version."""
    (found,) = clients_folder().glob(f"{name}-*/node_modules/.bin/{name}")
    return found


class Home:
    """A user who has never run the client, in a project folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "home"
        self.project = folder / "project"
        self.folder.mkdir()
        self.project.mkdir()

    def run(self, name: str, *arguments: str, environment: Mapping[str, str]) -> str:
        """The client's standard output. Fails with all that it said when it ends with an error."""
        isolated = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
        }
        done = subprocess.run(
            [program(name), *arguments],
            cwd=self.project,
            env=isolated | dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{name} ended with {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout
