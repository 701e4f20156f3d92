"""Captured requests read back from files: forms of files, and which protocol a body is written in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from cluster.captures import files_of, guessed_api, read_captures
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
MESSAGE = {"model": "m", "max_tokens": 1, "system": "s", "messages": HI}
CHAT = {"model": "m", "messages": [{"role": "system", "content": "s"}, *HI]}


def written(folder: Path, text: str, name: str = "a.jsonl") -> Path:
    """A file of this text."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_may_hold_one_body_as_it_was_sent(tmp_path: Path) -> None:
    """Its bytes are kept, escapes and number forms included."""
    text = '{"model": "m", "system": "\\u003d", "messages": [], "temperature": 1.0}\n'
    [captured] = read_captures(written(tmp_path, text))
    assert captured.body == text.encode()


def test_a_file_may_hold_one_body_or_one_case_per_line(tmp_path: Path) -> None:
    """A line's own `api` or `path` says the protocol."""
    lines = [MESSAGE, CHAT, {"api": "responses", "body": {"x": 1}}, {"path": "/v1/completions?a=b", "body": {}}]
    found = read_captures(written(tmp_path, "\n".join(map(json.dumps, lines)) + "\n\n"))
    assert [one.api for one in found] == ["messages", "chat", "responses", "completions"]
    assert [json.loads(one.body) for one in found] == [MESSAGE, CHAT, {"x": 1}, {}]


def test_a_session_gives_its_requests_in_order_and_no_probes(shared: Path) -> None:
    """Probes have no body; headers are kept in lower case."""
    found = read_captures(shared / "client_sessions/cc_2.1.332_total_tokens.json")
    assert len(found) == 10
    assert {one.api for one in found} == {"messages"}
    assert "x-claude-code-session-id" in found[0].headers


def test_a_line_that_is_not_json_is_kept_for_its_protocol_to_refuse(tmp_path: Path) -> None:
    """So that the others are still read, and an error stands in its place."""
    found = read_captures(written(tmp_path, f'{json.dumps(CHAT)}\n{{"model": \n{json.dumps(CHAT)}\n'))
    assert [one.body for one in found][1] == b'{"model": '
    assert len(found) == 3


def test_the_protocol_that_is_asked_for_wins(tmp_path: Path) -> None:
    """Over guesses and over what a line says."""
    lines = [MESSAGE, {"api": "responses", "body": CHAT}]
    found = read_captures(written(tmp_path, "\n".join(map(json.dumps, lines))), "chat")
    assert [one.api for one in found] == ["chat", "chat"]


def test_an_unreadable_file_is_a_clear_error(tmp_path: Path) -> None:
    """It names the file."""
    with pytest.raises(InvalidRequest, match=r"missing\.json: cannot be read"):
        read_captures(tmp_path / "missing.json")
    (tmp_path / "b.json").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InvalidRequest, match=r"b\.json: cannot be read"):
        read_captures(tmp_path / "b.json")


@pytest.mark.parametrize("text", ["", "\n", "[]", '{"requests": [{"method": "HEAD", "path": "/", "body": null}]}'])
def test_a_file_without_any_request_is_a_clear_error(tmp_path: Path, text: str) -> None:
    """Not silence."""
    with pytest.raises(InvalidRequest, match="holds no request"):
        read_captures(written(tmp_path, text))


def test_a_folder_gives_its_captures_by_name(tmp_path: Path) -> None:
    """Other files stay out."""
    for name in ("b.json", "a.jsonl", "c.txt"):
        written(tmp_path, "{}", name)
    assert [file.name for file in files_of(tmp_path)] == ["a.jsonl", "b.json"]


@pytest.mark.parametrize(
    ("body", "api"),
    [
        ({"input": "x"}, "responses"),
        ({"prompt": "x"}, "completions"),
        ({"messages": HI}, "messages"),
        ({"messages": HI, "tools": [{"name": "a", "input_schema": {}}]}, "messages"),
        ({"messages": HI, "tools": [{"type": "function", "function": {}}]}, "chat"),
        ({"messages": [{"role": "developer", "content": "s"}, *HI]}, "chat"),
        ({"messages": [*HI, {"role": "system", "content": "s"}]}, "messages"),
        ({"messages": [*HI, {"role": "assistant", "tool_calls": []}]}, "chat"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages"),
        ({"messages": HI, "stream_options": {}}, "chat"),
        ("nonsense", "messages"),
    ],
)
def test_the_protocol_is_guessed_by_what_only_one_of_them_has(body: Any, api: str) -> None:
    """Bodies that fit both are read as Messages."""
    assert guessed_api(body) == api
