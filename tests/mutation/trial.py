"""Runs named tests over a copy of the code in which one guard is broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.mutation.mutants import MUTANTS

if TYPE_CHECKING:
    from tests.mutation.mutant import Mutant

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("router", "workers", "tests/router", "tests/workers")
TIMEOUT_S: Final = 120
PYTEST: Final = (
    sys.executable, "-B", "-m", "pytest", "-q", "-x", "--noconftest", "-p", "no:cacheprovider", "-p", "no:randomly",
)  # fmt: skip
TESTS_FAILED: Final = 1  # pytest's exit code; others mean that no test spoke


class Outcome(NamedTuple):
    """What became of a mutant; `by` is the test that failed, or why none could."""

    mutant: Mutant
    is_killed: bool
    by: str


class Trial:
    """A copy of the code in a folder of its own, in which one mutant after the other is tried."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "tests/__init__.py"):
            shutil.copy(ROOT / name, folder / name)

    def check_sound(self) -> None:
        """All named tests pass while nothing is broken; else their failure would prove nothing."""
        done = self._tested(sorted({test for mutant in MUTANTS for test in ids_of(mutant)}))
        if done.returncode:
            raise SystemExit(f"tests fail without any mutant:\n{(done.stdout + done.stderr)[-2_000:]}")

    def tried(self, mutant: Mutant) -> Outcome:
        """Break one guard, run its tests, mend it again."""
        path = self._folder / mutant.path
        whole = path.read_text(encoding="utf-8")
        if whole.count(mutant.source) != 1:
            return Outcome(mutant, False, f"its source stands {whole.count(mutant.source)} times in {mutant.path}")
        path.write_text(whole.replace(mutant.source, mutant.replacement), encoding="utf-8")
        try:
            done = self._tested(ids_of(mutant))
        finally:
            path.write_text(whole, encoding="utf-8")
        failed = re.search(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
        if done.returncode == TESTS_FAILED and failed:
            return Outcome(mutant, True, failed[1])
        return Outcome(mutant, False, f"pytest ended with {done.returncode}")

    def _tested(self, tests: list[str]) -> subprocess.CompletedProcess[str]:
        shared = os.environ.get("KVIST_SHARED", str(ROOT.parent / "shared"))
        return subprocess.run(
            [*PYTEST, *tests],
            cwd=self._folder,
            env=os.environ | {"KVIST_SHARED": shared},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )


def ids_of(mutant: Mutant) -> list[str]:
    """Its tests as pytest names them."""
    return [f"{mutant.test_file}::{test}" for test in mutant.tests]
