"""One vLLM engine and one simulated engine for the whole suite."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from tests.conformance.engines import ENGINES, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session", params=["sim", pytest.param("vllm", marks=pytest.mark.vllm)])
def bench(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Bench]:
    bench = Bench(ENGINES[request.param](tiny_model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that vLLM imports
        bench.run(bench.start())
    yield bench
    bench.finish()
