"""What tests of every package share: the demo model and the recorded fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers.models import prepare_tiny

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded fixtures. Its absence is a failure: a test that skips proves nothing."""
    folder = Path(os.environ.get("KVIST_SHARED", REPOSITORY.parent / "shared")) / "fixtures"
    if not folder.is_dir():
        pytest.fail(f"{folder} is missing: set KVIST_SHARED to the folder that holds fixtures/")
    return folder


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """Where prepared models are kept between runs."""
    return Path(os.environ.get("KVIST_CACHE", Path.home() / ".cache" / "kvist"))


@pytest.fixture(scope="session")
def tiny_model(cache_dir: Path) -> Path:
    """Folder of the random two-layer model, system text before tools."""
    return prepare_tiny(cache_dir, template="system-first")
