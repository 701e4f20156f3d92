"""`deploy/make_clients.sh`: clear when it cannot work, idle when there is nothing to do."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.clients.programs import REPOSITORY, clients_folder, program

if TYPE_CHECKING:
    from pathlib import Path

TOOLS = ("bash", "env", "grep", "head", "mkdir", "mktemp", "rm")


def make_clients(folder: Path, search_path: Path) -> subprocess.CompletedProcess[str]:
    script = REPOSITORY / "deploy" / "make_clients.sh"
    return subprocess.run(
        ["bash", str(script), str(folder)],
        env={"PATH": str(search_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def search_path(tmp_path: Path) -> Path:
    """A folder of programs without node and npm."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(str(shutil.which(tool)))
    return folder


def test_a_missing_node_or_npm_is_said_in_one_sentence(tmp_path: Path, search_path: Path) -> None:
    """With what to do; nothing is left behind."""
    done = make_clients(tmp_path / "clients", search_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kvist clients: node is missing: ")
    (search_path / "node").symlink_to(str(shutil.which("node")))
    done = make_clients(tmp_path / "clients", search_path)
    assert done.returncode == 1
    assert done.stderr.startswith("kvist clients: npm is missing: ")
    assert not (tmp_path / "clients").exists()


@pytest.mark.usefixtures("installed")
def test_clients_that_are_there_are_not_installed_again(search_path: Path) -> None:
    """npm is not even looked for."""
    (search_path / "node").symlink_to(str(shutil.which("node")))
    before = program("claude").stat().st_ino
    done = make_clients(clients_folder(), search_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert program("claude").stat().st_ino == before
