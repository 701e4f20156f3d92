"""Bodies of Messages: their fields, what real clients send, and that nothing but client errors is raised."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.messages import parse_count, parse_message
from cluster.prompt.conversation import Limits, Message, OutputFormat, Text
from router.errors import ClientError, InvalidRequest
from router.limits import MAX_BLOCKS_PER_MESSAGE, MAX_HINT_CHARS, MAX_IGNORED_FIELDS

if TYPE_CHECKING:
    from pathlib import Path

USER: Any = {"role": "user", "content": "Hi"}
SCHEMA: Any = {"type": "object", "properties": {"title": {"type": "string"}}}
FORM: Any = {"type": "json_schema", "schema": SCHEMA}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 9, "messages": [USER], **fields}).encode()


def test_a_message_is_read_with_its_sampling() -> None:
    read = parse_message(
        body(
            system=[{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
            temperature=0,
            top_p=0.5,
            top_k=3,
            stop_sequences=["x", ""],
            stream=True,
        )
    )
    assert (read.api, read.model, read.stream, read.system) == ("messages", "m", True, (Text("S"),))
    assert read.messages == (Message("user", (Text("Hi"),), "messages[0]"),)
    assert read.limits == Limits(max_tokens=9, temperature=0, top_p=0.5, top_k=3, stop=("x",))


@pytest.mark.parametrize("system", [None, []])
def test_no_system_text_is_none_however_that_is_said(system: Any) -> None:
    assert parse_message(body(system=system)) == parse_message(body())


def test_a_system_string_is_one_text() -> None:
    assert parse_message(body(system="S")) == parse_message(body(system=[{"type": "text", "text": "S"}]))


@pytest.mark.parametrize("stream", [True, False])
def test_no_tokens_at_all_are_asked_for_to_fill_the_cache(stream: bool) -> None:
    assert parse_message(body(max_tokens=0, stream=stream)).limits.max_tokens == 0


def test_counting_needs_no_max_tokens_and_reads_the_same_prompt() -> None:
    fields: Any = {
        "model": "m",
        "system": "S",
        "messages": [USER, {"role": "system", "content": "later"}],
        "tools": [{"name": "read", "input_schema": SCHEMA}],
        "thinking": {"type": "adaptive"},
    }
    counted, asked = parse_count(json.dumps(fields).encode()), parse_message(body(**fields))
    assert counted.limits.max_tokens is None
    for part in ("system", "messages", "tools", "tool_choice", "thinking"):
        assert getattr(counted, part) == getattr(asked, part)


def test_every_message_knows_where_it_stood() -> None:
    read = parse_message(
        body(messages=[USER, {"role": "assistant", "content": []}, {"role": "system", "content": "x"}])
    )
    assert [message.path for message in read.messages] == ["messages[0]", "messages[1]", "messages[2]"]
    assert [message.role for message in read.messages] == ["user", "assistant", "system"]
    assert read.messages[1].blocks == ()


@pytest.mark.parametrize("fields", [{"output_config": {"format": FORM}}, {"output_format": FORM}])
def test_a_form_of_the_answer_is_read_from_either_place(fields: Any) -> None:
    read = parse_message(body(**fields))
    assert read.output_format == OutputFormat(schema=json.dumps(SCHEMA))
    assert read.hints.ignored == ()


@pytest.mark.parametrize(
    ("config", "effort", "ignored"),
    [
        (None, "", ()),
        ({}, "", ()),
        ({"effort": "xhigh", "format": None}, "xhigh", ()),
        ({"effort": "endless"}, "", ("output_config.effort",)),
    ],
)
def test_effort_is_read_and_an_unknown_one_reported(config: Any, effort: str, ignored: Any) -> None:
    read = parse_message(body(output_config=config))
    assert (read.effort, read.hints.ignored) == (effort, ignored)


@pytest.mark.parametrize(
    ("thinking", "mode", "is_hidden", "ignored"),
    [
        (None, "default", False, ()),
        ({"type": "disabled"}, "off", False, ()),
        ({"type": "adaptive"}, "on", False, ()),
        ({"type": "adaptive", "display": "omitted"}, "on", True, ()),
        ({"type": "adaptive", "display": "updates"}, "on", False, ()),
        ({"type": "between_tools"}, "on", False, ()),
        ({"type": "enabled", "budget_tokens": 9, "display": "summarized"}, "on", False, ("thinking.budget_tokens",)),
    ],
)
def test_thinking_is_read_and_a_budget_is_not_followed(thinking: Any, mode: str, is_hidden: bool, ignored: Any) -> None:
    read = parse_message(body(thinking=thinking))
    assert (read.thinking, read.hide_thinking, read.hints.ignored) == (mode, is_hidden, ignored)


def test_what_asks_for_nothing_is_fine() -> None:
    read = parse_message(
        body(
            tools=[],
            tool_choice={"type": "auto"},
            thinking={"type": "disabled"},
            metadata={"user_id": "u"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            output_config={"effort": "low"},
            service_tier="auto",
            mcp_servers=[],
            system=None,
            temperature=None,
            cache_control={"type": "ephemeral"},
            diagnostics={"previous_message_id": None},
            safeguards=[{"type": "x"}],
        )
    )
    assert read.hints.ignored == ()


@pytest.mark.parametrize(
    ("management", "ignored"),
    [
        (None, ()),
        ({"edits": None}, ()),
        ({"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "all"}}]}, ()),
        (
            {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}]},
            ("context_management.edits of type clear_thinking_20251015",),
        ),
        (
            {"edits": [{"type": "compact_20260112"}, {"type": "compact_20260112"}]},
            ("context_management.edits of type compact_20260112",),
        ),
    ],
)
def test_the_context_is_kept_as_it_is(management: Any, ignored: Any) -> None:
    assert parse_message(body(context_management=management)).hints.ignored == ignored


def test_betas_are_ignored_and_named() -> None:
    assert parse_message(body(betas=["novel-2027-01-01"])).hints.ignored == ("betas",)


def test_what_is_ignored_is_bounded() -> None:
    """MAX_IGNORED_FIELDS names of MAX_HINT_CHARS at most, of all that is not followed together."""
    tools = [{"type": f"novel_{i}" + "x" * 999, "name": f"t{i}"} for i in range(30)]
    old = [{"type": f"odd_{i}" + "y" * 999} for i in range(30)]
    read = parse_message(body(tools=tools, messages=[{"role": "assistant", "content": old}, USER], novel=1))
    assert len(read.hints.ignored) == MAX_IGNORED_FIELDS
    assert max(map(len, read.hints.ignored)) <= MAX_HINT_CHARS + 32


@pytest.mark.parametrize(
    ("metadata", "session"),
    [
        ({"user_id": '{"device_id": "d", "session_id": "s-1"}'}, "s-1"),
        ({"user_id": "user_1"}, ""),
        ({"user_id": None}, ""),
        ({"user_id": 5}, ""),
        ("odd", ""),
        ({"user_id": '{"session_id": 5}'}, ""),
    ],
)
def test_a_session_hint_is_taken_where_agents_put_it(metadata: Any, session: str) -> None:
    assert parse_message(body(metadata=metadata)).hints.session == session


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": -1}, "max_tokens: must be at least 0, which only fills the cache"),
        ({"max_tokens": None}, "max_tokens: Expected `int`, got `null`"),
        ({"thinking": {"type": "novel"}}, "thinking.type: Invalid enum value 'novel'"),
        ({"thinking": {}}, "thinking: Object missing required field `type`"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type: only `json_schema` is served"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: field required"),
        ({"output_format": {"type": "json_schema", "schema": []}}, "output_format.schema: Expected `object`"),
        ({"output_config": "high"}, "output_config: Expected `object | null`, got `str`"),
        ({"mcp_servers": [{}]}, "mcp_servers: not supported yet"),
        ({"container": "c"}, "container: not supported yet"),
        ({"system": 5}, "system: Expected `str | array | null`, got `int`"),
        ({"stop_sequences": "x"}, "stop_sequences: Expected `array | null`, got `str`"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role: `developer` is not a role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content: field required"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content: Expected `str | array | null`"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_message(body(**fields))
    assert str(caught.value).startswith(words)


def test_required_fields_are_named_when_absent() -> None:
    for absent in ("model", "max_tokens", "messages"):
        fields = json.loads(body())
        del fields[absent]
        with pytest.raises(InvalidRequest, match=f"{absent}: field required"):
            parse_message(json.dumps(fields).encode())


def test_max_blocks_per_message_stops_floods_of_blocks_wherever_blocks_are() -> None:
    """MAX_BLOCKS_PER_MESSAGE of a message, of a tool's result, of a document and of a system text."""
    many = [{"type": "text", "text": ""}] * (MAX_BLOCKS_PER_MESSAGE + 1)
    result = {"type": "tool_result", "tool_use_id": "t", "content": many}
    document = {"type": "document", "source": {"type": "content", "content": many}}
    for fields, path in (
        ({"system": many}, "system"),
        ({"messages": [{"role": "user", "content": many}]}, r"messages\[0\].content"),
        ({"messages": [{"role": "user", "content": [result]}]}, r"messages\[0\].content\[0\].content"),
        ({"messages": [{"role": "user", "content": [document]}]}, r"messages\[0\].content\[0\].source.content"),
    ):
        with pytest.raises(InvalidRequest, match=f"{path}: more than {MAX_BLOCKS_PER_MESSAGE} blocks"):
            parse_message(body(**fields))


def test_every_body_of_recorded_sessions_is_read(shared: Path) -> None:
    """Requests of real clients, with all that they hold; what of them is not followed is nothing."""
    count, ignored = 0, set[str]()
    for path in sorted((shared / "client_sessions").glob("*.json")):
        for request in json.loads(path.read_text(encoding="utf-8"))["requests"]:
            if not request["path"].startswith("/v1/messages"):
                continue
            sent = request["body"]
            parse = parse_count if "count_tokens" in request["path"] else parse_message
            read = parse(json.dumps(sent).encode())
            assert len(read.messages) == len(sent["messages"])
            assert [tool.name for tool in read.tools] == [tool["name"] for tool in sent.get("tools", ())]
            assert [json.loads(tool.parameters) for tool in read.tools] == [
                tool["input_schema"] for tool in sent.get("tools", ())
            ]
            ignored.update(read.hints.ignored)
            count += 1
    assert count >= 33
    assert ignored == set()


def test_every_recorded_preamble_is_read(shared: Path) -> None:
    lines = (shared / "preamble_cases.jsonl").read_text(encoding="utf-8").splitlines()
    bodies = [case["body"] for case in map(json.loads, lines) if case["api"] == "messages"]
    assert len(bodies) >= 30
    for sent in bodies:
        assert parse_message(json.dumps(sent).encode()).hints.ignored == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
block_types = st.sampled_from(
    ["text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result",
     "tool_reference", "tool_addition", "tool_removal", "compaction", "browser_state", "novel"]
)  # fmt: skip
parts = st.sampled_from(
    ["text", "source", "title", "content", "thinking", "id", "name", "input", "tool_use_id", "is_error", "tool_name",
     "tool", "tabs", "state_changes", "media_type", "data", "definition", "input_schema", "type", "role"]
)  # fmt: skip


def with_type(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    inner = st.dictionaries(parts, values, max_size=4)
    return st.builds(lambda kind, found: {**found, "type": kind}, block_types, inner)


blocks = st.recursive(
    json_values, lambda inner: st.lists(with_type(inner), max_size=3) | with_type(inner), max_leaves=8
)
turn = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": blocks})


@given(
    fields=st.fixed_dictionaries(
        {"messages": st.lists(turn, min_size=1, max_size=3)},
        optional={
            "system": blocks,
            "tools": blocks,
            "tool_choice": blocks,
            "thinking": json_values,
            "output_config": st.dictionaries(st.sampled_from(["format", "effort"]), blocks),
            "context_management": json_values,
        },
    )
)
@settings(deadline=None, max_examples=200)
def test_whatever_comes_the_answer_is_a_conversation_or_a_client_error(fields: dict[str, Any]) -> None:
    for parse in (parse_message, parse_count):
        try:
            read = parse(body(**fields))
        except ClientError:
            continue
        assert len(read.messages) == len(fields["messages"])
        assert len(read.hints.ignored) <= MAX_IGNORED_FIELDS
