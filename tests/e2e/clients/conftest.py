"""One cluster of two simulated replicas for all clients, and the clients themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.clients import answers, programs
from tests.e2e.clients.request_lines import AT_ONCE
from tests.e2e.cluster_process import ServeProcess, serving, simulated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """Two replicas in the tiny model's place, system text before tools, that say what is scripted."""
    settings: dict[str, Any] = {"block_size": 32, "pool_blocks": 8192, "answers": answers.script()}
    config = simulated(engine_args=settings, template="system-first")
    with serving(config, tmp_path_factory.mktemp("clients"), AT_ONCE) as running:
        yield running


@pytest.fixture(scope="session")
def installed() -> None:
    """A client that cannot be installed is a failure: a test that skips proves nothing."""
    if reason := programs.install():
        pytest.fail(f"the clients cannot be installed: {reason}")


@pytest.fixture
def home(tmp_path: Path, installed: None) -> programs.Home:
    """An empty home, and a project with one note in it."""
    made = programs.Home(tmp_path)
    (made.project / "note.txt").write_text(f"The word of the day is {answers.NOTE_WORD}.\n")
    return made
