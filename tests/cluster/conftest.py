"""The demo model as the ingress loads it, and the app over a scripted engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cluster.models.served import load_model
from cluster.prompt.canonical import Rules
from cluster.tenants import Tenants
from tests.cluster.support import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.models.served import ServedModel
    from tests.cluster.support import Service

CONTEXT_TOKENS = 4096


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def served(tiny_model: Path) -> ServedModel:
    """The demo model with a short context window."""
    model = load_model(tiny_model, name="tiny", max_model_len=CONTEXT_TOKENS, rules=Rules())
    model.warm()
    return model


@pytest.fixture
async def service(served: ServedModel) -> AsyncIterator[Service]:
    """The app without keys, on loopback."""
    async with serving({"tiny": served}, Tenants()) as running:
        yield running
