"""Claude Code's command line, with its default settings, works a task on a Kvist cluster and stays warm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from tests.e2e.clients import answers
from tests.e2e.clients.request_lines import assert_stays_warm, request_lines

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.clients.programs import Home
    from tests.e2e.cluster_process import ServeProcess

pytestmark = pytest.mark.ray


def ask(cluster: ServeProcess, home: Home, *arguments: str) -> dict[str, Any]:
    """One prompt, not interactive; what the client reports of it."""
    environment = {"ANTHROPIC_BASE_URL": cluster.url, "ANTHROPIC_API_KEY": "dummy"}
    said = home.run("claude", "-p", *arguments, "--output-format", "json", environment=environment)
    report: dict[str, Any] = json.loads(said)
    return report


def test_claude_code_works_a_task_of_two_turns_with_tool_calls_and_stays_warm(
    cluster: ServeProcess, home: Home
) -> None:
    """It runs both tools: only their results hold the word. Every request finds 97 % of the one before in the cache."""
    first = ask(cluster, home, answers.CLAUDE_CODE_QUESTION)
    assert (first["result"], first["is_error"], first["num_turns"]) == (answers.NOTE_ANSWER, False, 3)
    assert first["permission_denials"] == []
    second = ask(cluster, home, answers.NEXT_QUESTION, "--continue")
    assert (second["result"], second["session_id"]) == (answers.NEXT_ANSWER, first["session_id"])
    lines = request_lines(cluster, "claude-cli", count=3, session=first["session_id"])
    assert [(line["api"], line["outcome"]) for line in lines] == [("messages", "completed")] * 3
    assert "attribution_line" in lines[0]["rules"]  # a conversation that is known is read on from its new turns
    assert lines[0]["prompt_tokens"] > 10_000
    assert_stays_warm(lines)


def test_claude_code_resumes_an_answer_that_broke_off_and_stays_warm(cluster: ServeProcess, home: Home) -> None:
    """It keeps the text that came before the error, because its block was closed, and asks for the rest."""
    said = ask(cluster, home, answers.BROKEN_QUESTION)
    assert (said["result"], said["is_error"]) == (answers.BROKEN_REST, False)
    lines = request_lines(cluster, "claude-cli", count=2, session=said["session_id"])
    assert [line["outcome"] for line in lines] == ["failed_replica", "completed"]
    assert_stays_warm(lines)


def test_the_call_that_names_a_session_gets_its_title_as_the_schema_wants_it(
    cluster: ServeProcess, shared: Path
) -> None:
    """As recorded of the interactive client: no tools, a schema, the same model."""
    recorded = json.loads((shared / "client_sessions" / "cc_2.1.332_title_call.json").read_text(encoding="utf-8"))
    (call,) = recorded["requests"]
    sdk = anthropic.Anthropic(base_url=cluster.url, api_key="dummy", max_retries=0)
    with sdk.messages.stream(**{name: value for name, value in call["body"].items() if name != "stream"}) as stream:
        assert json.loads(stream.get_final_text()) == {"title": ""}
