"""The import contracts bite: a planted import breaks them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("router", "workers", "cluster", "load_tests")


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("router/index.py", "import socket"),
        ("router/index.py", "import urllib.request"),
        ("router/index.py", "import router.subscriber"),
        ("router/policy.py", "import workers.engine"),
        ("workers/relay.py", "import time"),
        ("cluster/prompt/canonical.py", "import cluster.asgi"),
        ("load_tests/client.py", "import cluster.app"),
    ],
)
def test_an_import_that_crosses_a_boundary_is_refused(tmp_path: Path, module: str, planted: str) -> None:
    """IO in core, core on shell, a package on one above it, load tests on the cluster."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / module
    path.write_text(path.read_text() + f"\n{planted}  # noqa\n")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run([*command, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 broken" in done.stdout or "2 broken" in done.stdout
