"""Codex, over Responses, works a task on a Kvist cluster and stays warm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.clients import answers
from tests.e2e.clients.request_lines import assert_stays_warm, request_lines

if TYPE_CHECKING:
    from tests.e2e.clients.programs import Home
    from tests.e2e.cluster_process import ServeProcess

pytestmark = pytest.mark.ray

CONFIG = """
model = "tiny"
model_provider = "kvist"
sandbox_mode = "danger-full-access"  # a container may not allow the sandbox itself

[model_providers.kvist]
name = "Kvist"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "KVIST_KEY"
"""


def ask(home: Home, *arguments: str) -> list[dict[str, Any]]:
    """What happened, as Codex tells it."""
    said = home.run("codex", "exec", *arguments, "--skip-git-repo-check", "--json", environment={"KVIST_KEY": "dummy"})
    return [json.loads(line) for line in said.splitlines()]


def items(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    done = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in done if item["type"] == kind]


def test_codex_works_a_task_of_two_turns_with_a_tool_call_and_stays_warm(cluster: ServeProcess, home: Home) -> None:
    """It runs the command: only its output holds the word. Every request finds 97 % of the one before in the cache."""
    (home.folder / ".codex").mkdir()
    (home.folder / ".codex" / "config.toml").write_text(CONFIG.format(url=cluster.url))
    first = ask(home, answers.CODEX_QUESTION)
    assert [item["exit_code"] for item in items(first, "command_execution")] == [0]
    assert items(first, "agent_message")[-1]["text"] == answers.NOTE_ANSWER
    second = ask(home, "resume", "--last", answers.NEXT_QUESTION)
    assert items(second, "agent_message")[-1]["text"] == answers.NEXT_ANSWER
    assert second[0]["thread_id"] == first[0]["thread_id"]
    lines = request_lines(cluster, "codex", count=3, session=first[0]["thread_id"])
    assert [(line["api"], line["outcome"]) for line in lines] == [("responses", "completed")] * 3
    assert lines[0]["prompt_tokens"] > 5_000
    assert_stays_warm(lines)
