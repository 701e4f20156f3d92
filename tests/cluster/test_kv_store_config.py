"""What an operator may say about a store, and what reaches the engine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.config import parse_config
from router.errors import InvalidRequest
from router.limits import KV_STORE_BYTES, LEAST_KV_STORE_BYTES
from workers.kv_store.settings import KvStoreSettings, transfer_config
from workers.vllm_engine import shared


def model_with(**fields: Any) -> Any:
    return parse_config({"models": [{"name": "a", "source": "tiny", **fields}]}).models[0]


def test_a_store_is_bounded_without_being_told() -> None:
    store = model_with(kv_store={}).kv_store
    assert store.max_bytes == KV_STORE_BYTES
    assert store.folder.startswith("/")


def test_without_a_store_there_is_none() -> None:
    assert model_with().kv_store is None


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"kv_store": {"folder": "kv"}}, "absolute"),
        ({"kv_store": {"max_bytes": LEAST_KV_STORE_BYTES - 1}}, "max_bytes"),
        ({"kv_store": {"load_deadline_s": 0}}, "load_deadline_s"),
        ({"kv_store": {"size": 1}}, "unknown key"),
        ({"kv_store": {}, "engine": "sim"}, "simulated"),
        ({"kv_store": {}, "engine_args": {"kv_transfer_config": {"kv_connector": "X"}}}, "exclude each other"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        model_with(**fields)


def test_the_engine_recomputes_what_it_cannot_load() -> None:
    """vLLM's own default fails the request."""
    settings = msgspec.convert(model_with(kv_store={"folder": "/kv"}).kv_store.model_dump(), KvStoreSettings)
    config = transfer_config(settings)
    assert config["kv_load_failure_policy"] == "recompute"
    assert msgspec.convert(config["kv_connector_extra_config"], KvStoreSettings) == settings
    assert shared(settings) == {"kv_transfer_config": config}
