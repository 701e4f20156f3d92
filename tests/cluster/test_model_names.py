"""What clients may call a model, and what they are told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
import pytest

from cluster.model_names import ModelNames
from cluster.tenants import Tenants
from router.errors import UnknownModel
from router.limits import MAX_HINT_CHARS, MAX_MODEL_NAME_CHARS
from tests.cluster.conftest import CONTEXT_TOKENS
from tests.cluster.support import EngineBackend, ScriptedEngine, serving_over

if TYPE_CHECKING:
    from cluster.models.served import ServedModel

KNOWN_TO_CLAUDE_CODE = ["claude-opus-5-5", "claude-sonnet-4-6", "claude-haiku-4-5-20251001", "claude-opus-4-8[1m]"]


@pytest.fixture
def names(served: ServedModel) -> ModelNames:
    """One model, every Claude id, and one alias that is a name."""
    return ModelNames({"tiny": served}, {"claude-*": "tiny", "fast": "tiny"})


@pytest.mark.parametrize("asked", ["tiny", "fast", *KNOWN_TO_CLAUDE_CODE])
def test_served_names_and_aliases_lead_to_the_model(names: ModelNames, served: ServedModel, asked: str) -> None:
    """Also the ids of small-model calls and of long-context variants."""
    assert names.find(asked) is served


@pytest.mark.parametrize("asked", ["", "gpt-5", "my-claude-1", "CLAUDE-opus", "x" * 5_000])
def test_other_names_are_refused_with_a_hint(names: ModelNames, asked: str) -> None:
    """The text names what was asked for, shortened, and where to look."""
    with pytest.raises(UnknownModel, match="GET /v1/models lists") as raised:
        names.find(asked)
    assert len(str(raised.value)) < MAX_HINT_CHARS + 100


def test_a_model_name_longer_than_max_model_name_chars_is_no_alias(names: ModelNames) -> None:
    """Patterns are matched against short names only."""
    with pytest.raises(UnknownModel):
        names.find("claude-" + "x" * MAX_MODEL_NAME_CHARS)


def test_an_alias_never_hides_a_served_name(served: ServedModel) -> None:
    """Served names are looked up first."""
    other = object()
    names = ModelNames({"claude-a": served, "b": other}, {"claude-*": "b"})  # type: ignore[dict-item]
    assert names.find("claude-a") is served
    assert names.find("claude-b") is other


@pytest.mark.anyio
async def test_v1_models_tells_the_true_window_of_an_alias_and_answers_echo_the_asked_id(served: ServedModel) -> None:
    """Patterns are not listed, names are; every id that leads somewhere can be looked up."""
    backend = EngineBackend(ScriptedEngine())
    aliases = {"claude-*": "tiny", "claude-kvist": "tiny"}
    async with (
        serving_over(backend, {"tiny": served}, Tenants(), aliases=aliases) as (url, reports),
        aiohttp.ClientSession(url) as http,
    ):
        listed = await (await http.get("/v1/models")).json()
        assert [entry["id"] for entry in listed["data"]] == ["tiny", "claude-kvist"]
        one = await (await http.get("/v1/models/claude-opus-5-5")).json()
        assert (one["id"], one["max_input_tokens"]) == ("claude-opus-5-5", CONTEXT_TOKENS - 1)
        body = {"model": "claude-opus-5-5", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
        answer = await (await http.post("/v1/messages", json=body)).json()
        assert answer["model"] == "claude-opus-5-5"
        assert (backend.jobs[-1].model, reports[-1].model) == ("tiny", "tiny")
        assert (await http.get("/v1/models/gpt-5")).status == 404
