"""How many tokens a model's prompt and answer may have together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cluster.config import ModelConfig
from cluster.serve_ingress import context_window
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path


def window(folder: Path, config: dict[str, Any], **engine_args: Any) -> int:
    (folder / "config.json").write_text(json.dumps(config))
    return context_window(ModelConfig(name="m", engine_args=engine_args), folder)


@pytest.mark.parametrize(
    ("length", "tokens"), [(4096, 4096), ("4096", 4096), ("128k", 128_000), ("128K", 131_072), ("1.5M", 1_572_864)]
)
def test_the_engines_own_setting_counts_as_vllm_reads_it(tmp_path: Path, length: object, tokens: int) -> None:
    """Numbers, and the short forms."""
    assert window(tmp_path, {"max_position_embeddings": 7}, max_model_len=length) == tokens


def test_else_the_models_config_says_it_also_for_models_with_several_parts(tmp_path: Path) -> None:
    """`text_config` may be absent or null."""
    assert window(tmp_path, {"max_position_embeddings": 7}) == 7
    assert window(tmp_path, {"text_config": {"max_position_embeddings": 8}}) == 8


@pytest.mark.parametrize(("config", "length"), [({}, None), ({"text_config": None}, None), ({}, "long")])
def test_a_window_that_nobody_says_is_an_error_that_names_the_setting(
    tmp_path: Path, config: dict[str, Any], length: str | None
) -> None:
    """`engine_args.max_model_len`."""
    with pytest.raises(InvalidRequest, match="max_model_len"):
        window(tmp_path, config, **({"max_model_len": length} if length else {}))
