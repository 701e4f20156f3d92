"""Everything that fuzzing ever found, our own seeds and the recorded fixtures, through every target."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.fuzz.targets import NAMES, target

CORPUS = Path(__file__).parent / "corpus"
MAX_FILES, MAX_BYTES = 300, 500_000
MAX_GROWTH_MB = 100


@pytest.mark.parametrize("name", NAMES)
def test_no_input_found_so_far_breaks_a_target(name: str) -> None:
    """Only the errors that a target expects leave the code under test, and its invariants hold."""
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    for path in inputs:
        target(name).run(path.read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_our_own_seeds_are_in_the_corpus(name: str) -> None:
    """The fuzzer starts from what our encoders make today, not from an older form of it."""
    committed = {path.read_bytes() for path in (CORPUS / name).iterdir()}
    assert committed.issuperset(target(name).seeds())


@pytest.mark.parametrize("name", ["engine_batch", "recording", "messages", "chat"])
def test_recorded_input_and_its_halves_break_nothing(name: str, shared: Path) -> None:
    """What engines and clients really sent, whole and cut off; memory stays bounded."""
    count, before = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for data in target(name).recorded(shared):
        for whole in (data, data[: len(data) // 2]):
            target(name).run(whole)
        count += 1
    assert count >= 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before <= MAX_GROWTH_MB * 1024


def test_the_corpus_stays_small() -> None:
    """It is replayed by everybody."""
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert len(files) <= MAX_FILES
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES
    assert {path.parent.name for path in files} == set(NAMES)
