"""Recorded shapes of volatile prompts, compared in tokens of the demo model's template."""

from __future__ import annotations

import asyncio
import json
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from cluster.api.chat import parse_chat
from cluster.api.messages import parse_message
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.models.served import ServedModel

PARSERS = {"messages": parse_message, "chat": parse_chat}
TURN_END, NEW_TURN = "<|im_end|>\n", "<|im_start|>assistant\n"

# What is refused so far, by name, so that a new case cannot hide here.
REFUSED = {
    "assistant_and_tool_quote_header": "tools: not supported yet",
    "cache_control_on_tool": "tools: not supported yet",
    "deferred_tool_hidden": "tools: not supported yet",
    "tools_base": "tools: not supported yet",
    "inline_system_after_assistant": "messages[4].role: `system` after an assistant turn is not supported yet",
    "total_tokens_turn_two": "messages[4].role: `system` after an assistant turn is not supported yet",
    "total_tokens_turn_three": "messages[4].role: `system` after an assistant turn is not supported yet",
}
OTHER_PROTOCOLS = {"responses_base", "responses_instructions_header"}


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, dict[str, Any]]:
    lines = (shared / "preamble_cases.jsonl").read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


def rendered(case: dict[str, Any], served: ServedModel) -> str:
    parsed = PARSERS[case["api"]](json.dumps(case["body"]).encode())
    return asyncio.run(served.prompt(served.canonical(parsed).conversation))


def tokens(text: str, served: ServedModel) -> array[int]:
    return array("I", asyncio.run(served.tokens(text)))


def test_every_case_is_either_served_or_refused_by_name(cases: dict[str, dict[str, Any]]) -> None:
    refused, other = {}, set()
    for name, case in cases.items():
        if case["api"] not in PARSERS:
            other.add(name)
            continue
        try:
            PARSERS[case["api"]](json.dumps(case["body"]).encode())
        except InvalidRequest as error:
            refused[name] = str(error)
    assert (refused, other) == (REFUSED, OTHER_PROTOCOLS)
    assert len(cases) - len(refused) - len(other) >= 31


def test_every_served_case_holds_in_tokens(cases: dict[str, dict[str, Any]], served: ServedModel) -> None:
    served_cases = {name: case for name, case in cases.items() if name not in REFUSED | dict.fromkeys(OTHER_PROTOCOLS)}
    prompts = {name: rendered(case, served) for name, case in served_cases.items()}
    related = 0
    for name, case in served_cases.items():
        text = prompts[name]
        check_strings(name, case, text)
        baseline = case["same_prefix_as"]
        if baseline is not None:
            related += 1
            check_relation(name, case, (tokens(text, served), tokens(prompts[baseline], served)), served)
    assert related >= 24


def check_strings(name: str, case: dict[str, Any], text: str) -> None:
    assert all(kept in text for kept in case["must_keep"]), name
    assert not any(dropped.lower() in text.lower() for dropped in case["must_drop"]), name
    at = 0
    for part in case.get("order", []):
        at = text.index(part, at) + len(part)


def check_relation(name: str, case: dict[str, Any], both: tuple[array[int], array[int]], served: ServedModel) -> None:
    mine, baseline = both
    relation = case["relation"]
    if relation == "equal":
        assert mine == baseline, name
    elif relation == "extends":
        whole = baseline[: len(baseline) - len(tokens(NEW_TURN, served))]
        assert mine[: len(whole)] == whole, name
        assert len(mine) > len(baseline), name
    else:
        assert relation == "equal_through", name
        head = rendered(case, served).partition(case["through"])
        shared_tokens = tokens(head[0] + head[1] + TURN_END, served)
        assert mine[: len(shared_tokens)] == baseline[: len(shared_tokens)] == shared_tokens, name
