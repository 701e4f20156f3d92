"""The examples of docs/deploy.md are right by vLLM's and our own words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.config import parse_config
from workers.vllm_engine import typed_arguments

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
EXAMPLES = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]


def test_the_page_has_its_examples() -> None:
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: next(iter(example)))
def test_an_example_fits_into_a_cluster_file(example: dict[str, Any]) -> None:
    parse_config({"models": [{"name": "a", "source": "tiny"} | example]})


@pytest.mark.parametrize("example", [one for one in EXAMPLES if "engine_args" in one])
def test_vllm_knows_the_connector_and_takes_every_setting(example: dict[str, Any]) -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    transfer = typed_arguments(example["engine_args"])["kv_transfer_config"]
    assert transfer.kv_connector in KVConnectorFactory._registry
    assert transfer.is_kv_transfer_instance
