"""Breaking any one guard makes a named test fail: the most important here, all by `python -m tests.mutation`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.mutation.mutants import MUTANTS
from tests.mutation.trial import ROOT, Trial

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mutation.mutant import Mutant

IMPORTANT = ("ref-count", "fence", "incarnation check", "heartbeat", "last-token floor")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A copy of the code whose named tests all pass."""
    made = Trial(tmp_path_factory.mktemp("mutation"))
    made.check_sound()
    return made


@pytest.mark.parametrize("name", IMPORTANT)
def test_a_broken_guard_makes_its_named_test_fail(trial: Trial, name: str) -> None:
    """Whoever weakens it hears of it at once, and by name."""
    [mutant] = [one for one in MUTANTS if one.name == name]
    outcome = trial.tried(mutant)
    assert outcome.is_killed, outcome.by
    assert outcome.by.split("[")[0] in {f"{mutant.test_file}::{test}" for test in mutant.tests}


def test_a_mutant_that_changes_nothing_would_be_reported(trial: Trial) -> None:
    """The proof can fail: a guard that is not broken kills no test, and a source that is gone is no proof."""
    guard = MUTANTS[0]
    assert not trial.tried(guard._replace(replacement=guard.source)).is_killed
    assert "0 times" in trial.tried(guard._replace(source="no such guard")).by


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_every_mutant_still_applies(mutant: Mutant) -> None:
    """Its source stands in the code exactly once, and its tests exist."""
    assert read(ROOT / mutant.path).count(mutant.source) == 1
    assert mutant.source != mutant.replacement
    for test in mutant.tests:
        assert re.search(rf"def {test}\(", read(ROOT / mutant.test_file)), test


def test_mutants_have_names_of_their_own() -> None:
    """`--only` means one."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
