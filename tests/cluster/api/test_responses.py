"""Responses bodies: everything an agent sends has its place in the conversation, or is refused or counted by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.responses import asked_of, parse_responses
from cluster.api.responses_items import sealed, unsealed
from cluster.prompt.conversation import (
    Limits,
    Media,
    Message,
    OutputFormat,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from router.errors import ClientError, InvalidRequest
from router.limits import (
    MAX_BLOCKS_PER_MESSAGE,
    MAX_ECHOED_BYTES,
    MAX_HINT_CHARS,
    MAX_IGNORED_FIELDS,
    MAX_MESSAGES,
    MAX_TOOL_NAME_CHARS,
    MAX_TOOLS,
)
from tests.cluster.api.responses_bodies import AGENTS, CALL, PATCH, READ, RESULT, USER, blocks, body, complaint, turns

if TYPE_CHECKING:
    from pathlib import Path


def test_a_text_is_the_same_as_a_user_message_of_one_part() -> None:
    item = {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    assert (
        turns(item) == parse_responses(body()).messages == turns(USER) == (Message("user", (Text("Hi"),), "input[0]"),)
    )


def test_instructions_and_leading_orders_are_the_system_text_and_later_ones_stay_where_they_are() -> None:
    read = parse_responses(
        body(
            instructions="I",
            input=[
                {"role": "developer", "content": [{"type": "input_text", "text": "D"}]},
                {"role": "system", "content": "S"},
                USER,
                {"role": "developer", "content": "later"},
            ],
        )
    )
    assert read.system == (Text("I"), Text("D"), Text("S"))
    assert read.messages == (
        Message("user", (Text("Hi"),), "input[2]"),
        Message("system", (Text("later"),), "input[3]"),
    )


def test_items_of_one_answer_are_one_turn_in_their_order() -> None:
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I read."}]}
    other = {**CALL, "call_id": "c2"}
    assert turns(USER, reasoning, said, CALL, other, RESULT, {**RESULT, "call_id": "c2"}, USER) == (
        Message("user", (Text("Hi"),), "input[0]"),
        Message(
            "assistant",
            (
                Thinking("Hm."),
                Text("I read."),
                ToolCall("c1", "read", '{"a": 1.0}'),
                ToolCall("c2", "read", '{"a": 1.0}'),
            ),
            "input[1]",
        ),
        Message("user", (ToolResult("c1", (Text("done"),)), ToolResult("c2", (Text("done"),))), "input[5]"),
        Message("user", (Text("Hi"),), "input[7]"),
    )


def test_neighbouring_questions_stay_apart() -> None:
    assert [message.path for message in turns(USER, USER)] == ["input[0]", "input[1]"]


def test_an_empty_text_beside_a_call_is_none() -> None:
    empty = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]}
    assert blocks(CALL, empty) == (ToolCall("c1", "read", '{"a": 1.0}'),)


@pytest.mark.parametrize("arguments", ["", "{", '{"a":  1.0}', '{"é": "\\u00e9"}'])
def test_arguments_stay_as_they_are(arguments: str) -> None:
    assert blocks({**CALL, "arguments": arguments}) == (ToolCall("c1", "read", arguments),)


def test_ids_of_items_are_not_read() -> None:
    assert turns({**USER, "id": "msg_1"}, CALL) == turns({**USER, "id": "msg_2"}, {**CALL, "id": None})


def test_results_may_be_parts_and_pictures() -> None:
    parts = [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]
    assert blocks({**RESULT, "output": parts}) == (ToolResult("c1", (Text("See"), Media("image", "image/png"))),)


def test_of_media_only_the_kind_is_kept() -> None:
    parts = [
        {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "high"},
        {"type": "input_image", "file_id": "f"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_audio"},
    ]
    assert blocks({"role": "user", "content": parts}) == (
        Media("image"),
        Media("image"),
        Media("document", "application/pdf"),
        Media("audio", "audio/wav"),
        Media("audio"),
    )


def test_a_refusal_is_what_the_model_said() -> None:
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert blocks(refusal) == (Text("No."),)


@pytest.mark.parametrize(
    ("reasoning", "said"),
    [
        (
            {
                "content": [{"type": "reasoning_text", "text": "é\n"}],
                "summary": [{"type": "summary_text", "text": "S"}],
            },
            "é\n",
        ),
        ({"summary": [], "encrypted_content": sealed("é\n")}, "é\n"),
        ({"content": None, "summary": [{"type": "summary_text", "text": "S"}], "encrypted_content": "gAAAA"}, "S"),
        ({"content": [{"type": "reasoning_text", "text": "a"}, {"type": "reasoning_text", "text": "b"}]}, "a\nb"),
    ],
)
def test_reasoning_comes_back_in_its_own_words_where_they_are_to_be_found(reasoning: Any, said: str) -> None:
    assert blocks({"type": "reasoning", **reasoning}) == (Thinking(said),)


def test_reasoning_that_only_another_server_can_read_is_left_out_and_counted() -> None:
    read = parse_responses(body(input=[USER, {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}]))
    assert [message.role for message in read.messages] == ["user"]
    assert read.hints.ignored == ("input[].encrypted_content",)


@given(st.text())
@settings(deadline=None)
def test_sealed_reasoning_is_read_back_word_for_word(text: str) -> None:
    text = text.encode(errors="replace").decode()
    assert unsealed(sealed(text)) == text


@pytest.mark.parametrize("content", ["", "gAAAA", "kvist1:!", "kvist1:/w==", "kvist1:é"])
def test_what_was_not_sealed_here_is_not_read(content: str) -> None:
    assert unsealed(content) is None


def test_calls_of_other_kinds_become_calls_of_functions() -> None:
    patch = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a "b"\né'}
    shell = {
        "type": "local_shell_call",
        "id": "l1",
        "call_id": "c2",
        "action": {"type": "exec", "command": ["ls", "-l"]},
    }
    results = [
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "1"},
        {"type": "local_shell_call_output", "id": "c2", "output": "2"},
    ]
    answer, result = turns(patch, shell, *results)
    assert answer.blocks == (
        ToolCall("c1", "patch", '{"input":"a \\"b\\"\\né"}'),
        ToolCall("c2", "local_shell", '{"command":["ls","-l"]}'),
    )
    assert result.blocks == (ToolResult("c1", (Text("1"),)), ToolResult("c2", (Text("2"),)))


def test_what_hosted_tools_left_is_passed_over_and_counted() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    read = parse_responses(body(input=[USER, CALL, search, {**CALL, "call_id": "c2"}]))
    assert [len(message.blocks) for message in read.messages] == [1, 2]
    assert read.hints.ignored == ("input[].web_search_call",)


def test_functions_free_form_tools_and_those_of_a_namespace_can_be_called() -> None:
    read = parse_responses(
        body(tools=[READ, {**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": "G"}}, AGENTS])
    )
    schema = '{"b": 1, "a": 2}'
    assert read.tools[0] == Tool(name="read", description="Reads.", parameters=schema)
    assert (read.tools[1].name, read.tools[1].free_form) == ("patch", True)
    assert read.tools[1].description == "Edits.\nThe input follows this grammar (lark):\nG"
    assert json.loads(read.tools[1].parameters)["required"] == ["input"]
    assert read.tools[2] == Tool(
        name="agents__read", description="All agents.\nReads.", parameters=schema, namespace="agents"
    )


def test_a_call_of_a_namespaces_tool_has_the_name_that_the_model_was_shown() -> None:
    assert blocks({**CALL, "namespace": "agents"}) == (ToolCall("c1", "agents__read", '{"a": 1.0}'),)
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "namespace": "agents", "input": ""}
    assert blocks(custom) == (ToolCall("c", "agents__patch", '{"input":""}'),)


def test_of_two_tools_of_one_name_the_first_counts() -> None:
    """Also where a namespace gives it that name."""
    read = parse_responses(
        body(tools=[READ, {**READ, "description": "Other."}, AGENTS, {**READ, "name": "agents__read"}])
    )
    assert [tool.description for tool in read.tools] == ["Reads.", "All agents.\nReads."]
    assert read.hints.ignored == ("tools[] of a name that is taken",)


def test_tools_that_run_elsewhere_are_left_out_and_counted() -> None:
    read = parse_responses(
        body(tools=[{"type": "web_search", "external_web_access": False}, READ, {"type": "web_search"}])
    )
    assert [tool.name for tool in read.tools] == ["read"]
    assert read.hints.ignored == ("tools[] of type web_search",)


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="any")),
        ({"type": "function", "name": "read"}, ToolChoice(mode="tool", name="read")),
        ({"type": "custom", "name": "patch"}, ToolChoice(mode="tool", name="patch")),
        ({"type": "function", "name": "read", "namespace": "agents"}, ToolChoice(mode="tool", name="agents__read")),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "read"}]},
            ToolChoice(mode="tool", name="read"),
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "read"}]}, ToolChoice()),
        ({"type": "allowed_tools", "mode": "required", "tools": [READ, PATCH]}, ToolChoice(mode="any")),
    ],
)
def test_the_choice_of_tools(choice: Any, read: ToolChoice) -> None:
    assert parse_responses(body(tools=[READ, PATCH, AGENTS], tool_choice=choice)).tool_choice == read


def test_one_call_at_a_time_can_be_asked_for() -> None:
    assert not parse_responses(body(parallel_tool_calls=False)).tool_choice.parallel
    assert parse_responses(body(parallel_tool_calls=None)).tool_choice.parallel


@pytest.mark.parametrize(
    ("form", "read"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, OutputFormat(schema='{"type":"object"}')),
        (
            {"type": "json_schema", "name": "n", "strict": True, "schema": {"b": 1, "a": 2}},
            OutputFormat(schema='{"b": 1, "a": 2}'),
        ),
    ],
)
def test_the_form_of_the_text(form: Any, read: OutputFormat | None) -> None:
    assert parse_responses(body(text={"format": form})).output_format == read


@pytest.mark.parametrize(
    ("effort", "read"),
    [(None, ("default", "")), ("none", ("off", "")), ("minimal", ("default", "minimal")), ("odd", ("default", ""))],
)
def test_effort_is_passed_on_where_it_is_one(effort: Any, read: tuple[str, str]) -> None:
    found = parse_responses(body(reasoning={"effort": effort}))
    assert (found.thinking, found.effort) == read
    assert found.hints.ignored == (("reasoning.effort",) if effort == "odd" else ())


def test_what_the_sampler_is_asked_for() -> None:
    read = parse_responses(body(max_output_tokens=7, temperature=0.5, top_p=0.9, top_k=3, seed=4, stream=True))
    assert read.limits == Limits(max_tokens=7, temperature=0.5, top_p=0.9, top_k=3, seed=4)
    assert read.stream
    assert parse_responses(body()).limits == Limits()


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"top_logprobs": 0}, None),
        ({"top_logprobs": 2}, 2),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 20}, 20),
    ],
)
def test_token_scores_are_given_to_who_asks_for_them(fields: Any, logprobs: int | None) -> None:
    assert parse_responses(body(**fields)).limits.logprobs == logprobs


def test_hints_and_wishes_that_are_not_followed_are_counted() -> None:
    read = parse_responses(
        body(
            prompt_cache_key="thread",
            reasoning={"summary": "auto"},
            truncation="auto",
            text={"verbosity": "low"},
            include=["file_search_call.results"],
            metadata={"a": "b"},
            client_metadata={"turn": "1"},
            service_tier="auto",
            user="u",
            safety_identifier="s",
            novel=1,
        )
    )
    assert read.hints.session == "thread"
    assert set(read.hints.ignored) == {"reasoning.summary", "truncation", "text.verbosity", "include", "novel"}


def test_at_most_so_many_ignored_names_are_kept() -> None:
    tools = [{"type": f"hosted_{i}" * 100} for i in range(100)]
    ignored = parse_responses(body(tools=tools)).hints.ignored
    assert len(ignored) == MAX_IGNORED_FIELDS
    assert all(len(name) <= 2 * MAX_HINT_CHARS for name in ignored)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"background": True}, "background: not supported yet"),
        ({"conversation": {"id": "conv_1"}}, "conversation: not supported yet"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt: not supported yet"),
        ({"n": 2}, "n: not supported yet"),
        ({"input": None}, "input: field required"),
        ({"input": []}, "input: at least one item is required"),
        ({"input": 5}, "input: Expected"),
        ({"input": [USER, {"type": "item_reference", "id": "msg_1"}]}, "input[1]: items are not kept here"),
        ({"input": [{"type": "novel"}]}, "input[0].type: `novel` is not an item that is supported"),
        ({"input": [{"content": "x"}]}, "input[0].role: `` is not a role"),
        ({"input": [{"role": "ghost", "content": "x"}]}, "input[0].role: `ghost` is not a role"),
        ({"input": [{"role": "user"}]}, "input[0].content: field required"),
        ({"input": [{"role": "user", "content": [{"type": "novel"}]}]}, "input[0].content[0]: content of type `novel`"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text: field required",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "refusal"}]}]},
            "input[0].content[0].refusal: field required",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": {}}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"role": "developer", "content": [{"type": "input_image"}]}]}, "input[0].content[0]: only text"),
        ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id: field required"),
        ({"input": [{**CALL, "name": None}]}, "input[0].name: field required"),
        ({"input": [{**RESULT, "call_id": None}]}, "input[0].call_id: field required"),
        ({"input": [{**RESULT, "output": None}]}, "input[0].output: field required"),
        ({"tools": [{"type": "function"}]}, "tools[0].name: a tool needs a name"),
        ({"tools": [{**READ, "parameters": 5}]}, "tools[0].parameters: Expected `object`"),
        ({"tools": [{**AGENTS, "name": None}]}, "tools[0].name: a tool needs a name"),
        ({"tools": [{**AGENTS, "tools": [{"type": "web_search"}]}]}, "tools[0].tools[0].type: must be"),
        ({"tools": [{**READ, "name": "n" * (MAX_TOOL_NAME_CHARS + 1)}]}, "tools[0].name: `nnn"),
        ({"tool_choice": "required"}, "tool_choice: `required` needs a tool"),
        ({"tool_choice": "odd"}, "tool_choice: `odd` is not a choice"),
        ({"tool_choice": {"type": "function", "name": "read"}}, "tool_choice: there is no tool `read`"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name: field required"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice: tools of type `web_search` are not run here"),
        ({"text": {"format": {"type": "odd"}}}, "text.format.type: `odd` is not supported"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema: Expected `object`"),
        ({"max_output_tokens": 0}, "max_output_tokens: must be at least 1"),
        ({"top_logprobs": 21}, "top_logprobs: must be between 0 and 20"),
        ({"instructions": ["x"]}, "instructions: Expected"),
        ({"vllm_xargs": {}}, "vllm_xargs: this field belongs to an engine"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    assert complaint(**fields).startswith(words)


def test_floods_of_items_parts_and_tools_are_stopped() -> None:
    assert complaint(input=[USER] * (MAX_MESSAGES + 1)) == f"input: more than {MAX_MESSAGES} items"
    parts = [{"type": "input_text", "text": ""}] * (MAX_BLOCKS_PER_MESSAGE + 1)
    assert complaint(input=[{"role": "user", "content": parts}]).startswith("input[0].content: more than")
    tools = [{"type": "function", "name": f"t{i}"} for i in range(MAX_TOOLS + 1)]
    assert complaint(tools=[{**AGENTS, "tools": tools}]) == f"tools[0].tools: more than {MAX_TOOLS} tools"
    halves = [{**AGENTS, "tools": tools[:1]}, {**AGENTS, "tools": tools[1:]}]
    assert complaint(tools=halves) == f"tools: more than {MAX_TOOLS} tools"


def test_endless_nesting_is_stopped() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    for field in (b"input", b"tools", b"metadata", b"novel"):
        with pytest.raises(InvalidRequest):
            parse_responses(b'{"model":"m","input":"x","' + field + b'":' + deep + b"}")
    with pytest.raises(InvalidRequest):
        parse_responses(b'{"model":"m","input":[{"role":"user","content":"x","novel":' + deep + b"}]}")


def test_small_fields_are_kept_to_be_repeated_and_large_ones_are_not() -> None:
    small = asked_of(parse_responses(body(metadata={"a": "b"}, tools=[READ], temperature=None))).fields
    assert small == {"metadata": {"a": "b"}, "tools": [READ]}
    large = parse_responses(body(instructions="x" * MAX_ECHOED_BYTES, metadata={"a": "b"}))
    assert asked_of(large).fields == {"metadata": {"a": "b"}}
    assert asked_of(large).instructed


def test_the_cases_of_the_preamble_fixture_are_read(shared: Path) -> None:
    lines = (shared / "preamble_cases.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [case for line in lines if (case := json.loads(line))["api"] == "responses"]
    read = [parse_responses(json.dumps(case["body"]).encode()) for case in cases]
    assert len(read) == 2
    assert {conversation.messages for conversation in read} == {
        (Message("user", (Text("Which sensors failed last night?"),), "input[0]"),)
    }
    assert [text.text.endswith("calibration tables.") for conversation in read for text in conversation.system] == [
        True
    ] * 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(
    ["model", "input", "instructions", "tools", "tool_choice", "reasoning", "text", "include", "metadata", "store",
     "type", "role", "content", "name", "arguments", "call_id", "output", "summary", "previous_response_id",
     "truncation"]
)  # fmt: skip
hostile = st.dictionaries(
    field_names, json_values | st.lists(st.dictionaries(field_names, json_values, max_size=4), max_size=3), max_size=8
)


@given(fields=hostile)
@settings(deadline=None, max_examples=300)
def test_whatever_comes_the_answer_is_a_conversation_or_a_client_error(fields: dict[str, Any]) -> None:
    try:
        read = parse_responses(body(**fields))
    except ClientError:
        return
    assert all(message.role in {"user", "assistant", "system"} for message in read.messages)
