"""Recorded shapes of volatile prompts, compared in tokens under templates of the demo model and of other families."""

from __future__ import annotations

import asyncio
import json
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from cluster.api.chat import parse_chat
from cluster.api.messages import parse_message
from cluster.api.responses import parse_responses
from cluster.models.served import load_model
from cluster.prompt.canonical import Rules
from cluster.prompt.template import render
from tests.cluster.prompt.families import FAMILIES, Family, write_family
from workers.models import prepare_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.models.served import ServedModel
    from cluster.prompt.template import Ending

PARSERS = {"messages": parse_message, "chat": parse_chat, "responses": parse_responses}
DEMO = ("system-first", "tools-first")


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, dict[str, Any]]:
    lines = (shared / "preamble_cases.jsonl").read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


@pytest.fixture(scope="module", params=[*DEMO, *FAMILIES], ids=str)
def model(request: pytest.FixtureRequest, cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    if isinstance(request.param, Family):
        folder = prepare_tiny(cache_dir, template="system-first")
        folder = write_family(request.param, tmp_path_factory.mktemp("family"), folder)
    else:
        folder = prepare_tiny(cache_dir, template=request.param)
    return load_model(folder, name="model", max_model_len=4096, rules=Rules())


def rendered(case: dict[str, Any], model: ServedModel, ending: Ending = "open_turn") -> str:
    parsed = PARSERS[case["api"]](json.dumps(case["body"]).encode())
    return render(model.canonical(parsed).conversation, model._template, ending=ending)


def tokens(text: str, model: ServedModel) -> array[int]:
    return array("I", asyncio.run(model.tokens(text)))


def test_every_case_holds_in_tokens(cases: dict[str, dict[str, Any]], model: ServedModel) -> None:
    assert len(cases) == 40
    for name, case in cases.items():
        check_strings(name, case, rendered(case, model))
        if case["same_prefix_as"] is not None:
            check_relation(name, case, cases[case["same_prefix_as"]], model)


def check_strings(name: str, case: dict[str, Any], text: str) -> None:
    assert all(kept in text for kept in case["must_keep"]), name
    assert not any(dropped.lower() in text.lower() for dropped in case["must_drop"]), name
    at = 0
    for part in case.get("order", []):
        assert part in text[at:], (name, part)
        at = text.index(part, at) + len(part)


def check_relation(name: str, case: dict[str, Any], baseline: dict[str, Any], model: ServedModel) -> None:
    mine, other = tokens(rendered(case, model), model), tokens(rendered(baseline, model), model)
    relation = case["relation"]
    if relation == "equal":
        assert mine == other, name
    elif relation == "extends":
        whole = tokens(rendered(baseline, model, "closed"), model)
        assert mine[: len(whole)] == whole, name
        assert len(mine) > len(other), name
    else:
        assert relation == "equal_through", name
        head = rendered(case, model).partition(case["through"])
        shared = tokens(head[0] + head[1], model)[:-1]  # its last token may reach into what follows
        assert mine[: len(shared)] == other[: len(shared)] == shared, name
