"""The linter for prompts: what is compared with what, where prompts part, and what is said of it."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cluster.captures import read_captures
from cluster.cli import app
from cluster.doctor.diagnosis import diagnose
from cluster.doctor.page import page
from cluster.doctor.parting import common_prefix, part
from cluster.doctor.prompts import Prompt, Reader, rules_without, switches
from cluster.doctor.requests import Pair, pairs_of, read_request
from cluster.models.chat_template import JinjaChatTemplate
from cluster.models.tokenizer import HfTokenizer
from cluster.prompt.canonical import Rules
from cluster.prompt.conversation import Conversation, Message, Text

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.doctor.diagnosis import Diagnosis

HEADER = "x-anthropic-billing-header: cc_version=2.1.114.{}; cc_entrypoint=cli; cch={};"


@pytest.fixture(scope="module")
def reader(tiny_model: Path) -> Reader:
    """The demo model's template and tokenizer."""
    return Reader(JinjaChatTemplate(tiny_model), HfTokenizer(tiny_model))


def diagnosed(reader: Reader, folder: Path, *bodies: dict[str, Any], session: str = "s") -> list[Diagnosis]:
    """The pairs among these bodies, captured in one session."""
    file = folder / "bodies.json"
    entries = [{"path": "/v1/messages", "headers": {"X-Session-Id": session}, "body": body} for body in bodies]
    file.write_text(json.dumps(entries), encoding="utf-8")
    return [diagnose(pair, reader) for pair in pairs_of(map(read_request, read_captures(file)))]


def body(*texts: str, system: str = "Be brief.", tools: tuple[str, ...] = ()) -> dict[str, Any]:
    """User and assistant in turn."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    offered = [{"name": name, "description": "d", "input_schema": {"type": "object"}} for name in tools]
    return {"model": "m", "max_tokens": 9, "system": system, "messages": messages, "tools": offered}


def test_an_attribution_line_costs_all_without_rules_and_nothing_with_them(reader: Reader, tmp_path: Path) -> None:
    """The diagnosis names place, rule and the client's own switch."""
    first = body("Hi", system=HEADER.format("aaa", "11111") + "\nBe brief.")
    second = body("Hi", "Hello", "How are you?", system=HEADER.format("aaa", "22222") + "\nBe brief.")
    [one] = diagnosed(reader, tmp_path, first, second)
    assert one.before is not None
    assert (one.before.path, one.after.lost_tokens) == ("system[0]", 0)
    assert one.before.lost_tokens > 0.5 * one.earlier_tokens
    assert one.saved_tokens == one.before.lost_tokens
    assert one.rules == ["strip_anthropic_preamble"]
    assert any("CLAUDE_CODE_ATTRIBUTION_HEADER=0" in text for text in one.advice)


def test_a_tool_list_that_grew_in_the_middle_is_named(reader: Reader, tmp_path: Path) -> None:
    """Which tools came, and the client's setting that keeps the list stable."""
    [one] = diagnosed(
        reader, tmp_path, body("Hi", tools=("Bash", "Read")), body("Hi", "So?", "Yes", tools=("Bash", "Grep", "Read"))
    )
    assert one.after.path.startswith("tools[")
    assert "tools added: Grep; gone: none" in one.advice
    assert any("ENABLE_TOOL_SEARCH=false" in text for text in one.advice)


def test_a_rewritten_turn_is_told_from_a_changed_head(reader: Reader, tmp_path: Path) -> None:
    """The path is the message's own, the excerpts say what each request had there."""
    [one] = diagnosed(reader, tmp_path, body("Hi", "One", "Go on"), body("Hi", "Two", "Go on", "Three", "Stop"))
    assert one.after.path == "messages[1].content[0]"
    assert ("One" in one.after.earlier_excerpt, "Two" in one.after.later_excerpt) == (True, True)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Today's date is 2026-11-30.", "Today's date is 2026-12-01.", "changes once a day"),
        ("Started 2026-11-30T10:00:01", "Started 2026-11-30T10:00:02", "volatile_lines"),
        ("Current branch: main", "Current branch: next", "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS=1"),
        ("Mode: a", "Mode: b", "system text changed"),
    ],
)
def test_known_causes_in_the_system_text_have_their_own_advice(
    reader: Reader, tmp_path: Path, old: str, new: str, words: str
) -> None:
    """Recognised by the words around the parting."""
    [one] = diagnosed(reader, tmp_path, body("Hi", system=old), body("Hi", "So?", "Yes", system=new))
    assert any(words in text for text in one.advice)


def test_turns_pair_within_a_conversation_and_first_ones_across_sessions(tmp_path: Path) -> None:
    """Title calls and sub-agents open with other words: they are nobody's next turn."""
    file = tmp_path / "a.json"
    calls = [("s1", body("Fix it", tools=("Bash",))), ("s1", body("Title?")), ("s1", body("Fix it", "ok", "more"))]
    calls += [("s2", body("Add it", tools=("Bash",)))]
    calls[2][1]["tools"] = calls[0][1]["tools"]
    entries = [{"path": "/v1/messages", "headers": {"x-session-id": s}, "body": b} for s, b in calls]
    file.write_text(json.dumps(entries), encoding="utf-8")
    pairs = [(pair.kind, pair.earlier.where[-1], pair.later.where[-1]) for pair in _pairs(file)]
    assert pairs == [("turn", "0", "2"), ("session", "0", "3")]


def _pairs(file: Path) -> list[Pair]:
    return list(pairs_of(map(read_request, read_captures(file))))


def test_every_recorded_turn_extends_the_one_before_under_the_rules(reader: Reader, shared: Path) -> None:
    """In all recorded sessions; without rules the old client loses everything on every turn."""
    sessions = shared / "client_sessions"
    found = [diagnose(pair, reader) for file in sorted(sessions.glob("cc_2*.json")) for pair in _pairs(file)]
    turns = [one for one in found if one.kind == "turn" and "count_tokens" not in one.later]
    assert len(turns) >= 20
    assert {one.after.lost_tokens for one in turns} == {0}
    old = [one for one in turns if "2.1.114" in one.later]
    assert all(one.before is not None and one.before.shared_tokens < 60 for one in old)


def test_sessions_on_one_repository_share_all_but_their_first_words(reader: Reader, shared: Path) -> None:
    """At least 99 % of the earlier prompt."""
    names = ["cc_2.1.332_repo_prompt_1.json", "cc_2.1.332_repo_prompt_2.json"]
    requests = [read_request(one) for name in names for one in read_captures(shared / "client_sessions" / name)]
    [pair] = [pair for pair in pairs_of(requests) if pair.kind == "session"]
    one = diagnose(pair, reader)
    assert one.after.shared_tokens >= 0.99 * one.earlier_tokens
    assert "the sessions' own words begin here, as they should" in one.advice


@given(st.text(alphabet="ab", max_size=12), st.text(alphabet="ab", max_size=12))
def test_the_common_prefix_is_the_longest_there_is(a: str, b: str) -> None:
    """Against counting one by one."""
    counted = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == counted


def test_a_longer_prompt_that_begins_with_the_shorter_does_not_part() -> None:
    """Nothing is lost, no place is named."""
    talk = Conversation(api="chat", model="m", messages=(Message("user", (Text("x"),), "messages[0]"),))
    found = part(Prompt("x", array("I", [1]), talk), Prompt("xy", array("I", [1, 2]), talk))
    assert found == (1, 0, "", "", "")


def test_switching_a_rule_off_changes_that_rule_alone() -> None:
    """Every switch has a value that means off."""
    for name in switches():
        changed = rules_without(name)
        assert getattr(changed, name) in {(), False, "native"}
        same = [other for other in switches() if other != name]
        assert [getattr(changed, other) for other in same] == [getattr(Rules(), other) for other in same]


def test_the_page_escapes_what_requests_say(reader: Reader, tmp_path: Path) -> None:
    """Nothing of a captured request becomes markup."""
    evil = "<script>alert(1)</script>"
    found = diagnosed(reader, tmp_path, body(evil, evil, "a"), body(evil, "b", "c", system=evil))
    html = page(found)
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


def test_the_command_prints_a_table_lines_of_json_and_a_page(shared: Path, tmp_path: Path) -> None:
    """On a folder; exit code 0, since nothing was unreadable."""
    file = tmp_path / "page.html"
    session = str(shared / "client_sessions" / "cc_2.1.114_session_a.json")
    table = CliRunner().invoke(app, ["doctor", session])
    assert (table.exit_code, "CLAUDE_CODE_ATTRIBUTION_HEADER=0" in table.output) == (0, True)
    lines = CliRunner().invoke(app, ["doctor", session, "--json", "--html", str(file)])
    rows = [json.loads(line) for line in lines.output.splitlines()]
    assert [row["after"]["lost_tokens"] for row in rows] == [0, 0]
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_an_unreadable_request_is_named_and_the_others_are_still_compared(tmp_path: Path) -> None:
    """Exit code 1."""
    file = tmp_path / "a.jsonl"
    file.write_text(f"{json.dumps(body('Hi'))}\n{{}}\n{json.dumps(body('Hi', 'a', 'b'))}\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["doctor", str(file), "--json"])
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert result.exit_code == 1
    assert rows[0]["after"]["lost_tokens"] == 0
    assert rows[1]["where"] == f"{file}:2"


def test_a_file_that_cannot_be_read_does_not_keep_a_folder_from_being_looked_at(tmp_path: Path) -> None:
    """It is named, with exit code 1."""
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "b.jsonl").write_text(f"{json.dumps(body('Hi'))}\n{json.dumps(body('Hi', 'a', 'b'))}\n", "utf-8")
    result = CliRunner().invoke(app, ["doctor", str(tmp_path), "--json"])
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert result.exit_code == 1
    assert ["after" in rows[0], rows[1]["where"]] == [True, str(tmp_path / "a.jsonl")]
