"""`kvist demo share` as a person runs it: two Ray replicas on real vLLM, one store."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.demo import run_share

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow]


def test_the_other_replica_serves_what_it_never_computed(tmp_path: Path) -> None:
    """All of a prompt's full blocks are found, and no token differs. How long it takes is for the demo to say."""
    data, _ = run_share(tmp_path)
    assert data["cached_fraction"] >= 0.99
    assert data["token_identical"] is True
    assert (tmp_path / "share.json").is_file()
    memory = Path("/dev/shm")
    assert not [*memory.glob("kvist-share-*")], "the store goes with the demo"
