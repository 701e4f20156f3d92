"""Bodies of Chat Completions: what becomes a conversation, what is ignored, what is refused and in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.chat import parse_chat
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
    MAX_CHOICES,
    MAX_LOGIT_BIAS_TOKENS,
    MAX_SAMPLING_FIELD_BYTES,
    MAX_STOP_SEQUENCE_CHARS,
    MAX_STOP_SEQUENCES,
    MAX_TOKEN_ID,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
)

USER: Any = {"role": "user", "content": "Hi"}
FUNCTION: Any = {"name": "read", "description": "Reads.", "parameters": {"type": "object", "properties": {"b": {}}}}
TOOL: Any = {"type": "function", "function": FUNCTION}
READ = Tool(name="read", description="Reads.", parameters='{"type": "object", "properties": {"b": {}}}')


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def turns(*messages: Any) -> tuple[Message, ...]:
    return parse_chat(body(messages=messages)).messages


def blocks(message: Any) -> Any:
    (turn,) = turns(message)
    return turn.blocks


def called(arguments: str | None = "{}", **more: Any) -> Any:
    return {"id": "c1", "type": "function", "function": {"name": "read", "arguments": arguments}, **more}


def test_leading_instructions_are_the_system_text_and_later_ones_stay_where_they_are() -> None:
    read = parse_chat(
        body(
            messages=[
                {"role": "system", "content": "S"},
                {"role": "developer", "content": [{"type": "text", "text": "D"}]},
                USER,
                {"role": "developer", "content": "later"},
            ]
        )
    )
    assert read.system == (Text("S"), Text("D"))
    assert read.messages == (
        Message("user", (Text("Hi"),), "messages[2]"),
        Message("system", (Text("later"),), "messages[3]"),
    )


def test_a_question_may_show_and_play_things() -> None:
    """Only their kind is kept, never their bytes."""
    parts = [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "image_url", "image_url": "https://example.org/a.png"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "f"}},
    ]
    assert blocks({"role": "user", "content": parts}) == (
        Text("See"),
        Media("image", "image/png"),
        Media("image"),
        Media("audio", "audio/wav"),
        Media("document", "application/pdf"),
        Media("document"),
    )


@pytest.mark.parametrize("arguments", ['{"b": 1, "a": "\\u00e9"}', "", "{broken", '["odd"]'])
def test_arguments_of_a_call_stay_as_they_are(arguments: str) -> None:
    found = blocks({"role": "assistant", "content": None, "tool_calls": [called(arguments)]})
    assert found == (ToolCall("c1", "read", arguments),)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_comes_before_text_and_text_before_calls(field: str) -> None:
    message = {"role": "assistant", "content": "So", "tool_calls": [called()], field: "Hm"}
    assert blocks(message) == (Thinking("Hm"), Text("So"), ToolCall("c1", "read", "{}"))


def test_reasoning_under_both_names_is_taken_once() -> None:
    message = {"role": "assistant", "content": "So", "reasoning_content": "Hm", "reasoning": "Hm"}
    assert blocks(message) == (Thinking("Hm"), Text("So"))


def test_a_refusal_is_what_the_assistant_said() -> None:
    assert blocks({"role": "assistant", "content": None, "refusal": "No."}) == (Text("No."),)
    assert blocks({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}) == (Text("No."),)


@pytest.mark.parametrize("nothing", [None, "", []])
def test_a_call_without_words_has_none_however_that_is_said(nothing: Any) -> None:
    message = {"role": "assistant", "content": nothing, "tool_calls": [called()]}
    assert blocks(message) == (ToolCall("c1", "read", "{}"),)


def test_an_empty_answer_stays_a_turn() -> None:
    assert blocks({"role": "assistant", "content": ""}) == (Text(""),)
    assert blocks({"role": "assistant", "content": []}) == ()


@pytest.mark.parametrize(
    ("content", "result"),
    [
        ("found", (Text("found"),)),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], (Text("a"), Text("b"))),
        ([{"type": "image_url", "image_url": {"url": "data:image/webp,A"}}], (Media("image", "image/webp"),)),
        ([], ()),
        (None, ()),
    ],
)
def test_what_a_tool_answered_is_a_result_in_a_user_turn(content: Any, result: Any) -> None:
    (turn,) = turns({"role": "tool", "tool_call_id": "c1", "content": content})
    assert turn == Message("user", (ToolResult("c1", result),), "messages[0]")


def test_the_older_form_of_calls_is_understood() -> None:
    """It has no ids: a result belongs to the last call."""
    read = parse_chat(
        body(
            functions=[FUNCTION],
            function_call={"name": "read"},
            messages=[
                USER,
                {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": "{}"}},
                {"role": "function", "name": "read", "content": "found"},
            ],
        )
    )
    call, result = read.messages[1].blocks[0], read.messages[2].blocks[0]
    assert call == ToolCall("call_1", "read", "{}")
    assert result == ToolResult("call_1", (Text("found"),))
    assert read.tools == (READ,)
    assert read.tool_choice == ToolChoice(mode="tool", name="read", parallel=False)
    assert read.hints.ignored == ()


def test_tools_keep_order_and_the_text_of_their_schemas() -> None:
    other = {"type": "function", "function": {"name": "a", "parameters": None, "strict": True, "description": None}}
    read = parse_chat(body(tools=[TOOL, other]))
    assert read.tools == (READ, Tool(name="a", strict=True))
    assert read.tool_choice == ToolChoice()


def test_tools_that_are_no_functions_are_left_out_and_reported() -> None:
    read = parse_chat(body(tools=[{"type": "web_search"}, TOOL, {"type": "web_search"}, {"type": "custom"}]))
    assert read.tools == (READ,)
    assert read.hints.ignored == ("tools[] of type web_search", "tools[] of type custom")


def test_the_first_tool_of_a_name_counts_and_others_are_reported() -> None:
    read = parse_chat(body(tools=[TOOL, {"type": "function", "function": {"name": "read"}}]))
    assert read.tools == (READ,)
    assert read.hints.ignored == ("tools[] of a name that is taken",)


def allowed(mode: str, *names: str) -> Any:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("wanted", "choice", "ignored"),
    [
        ("none", ToolChoice(mode="none"), ()),
        ("auto", ToolChoice(), ()),
        ("required", ToolChoice(mode="any"), ()),
        ({"type": "function", "function": {"name": "b"}}, ToolChoice(mode="tool", name="b"), ()),
        (allowed("required", "read"), ToolChoice(mode="tool", name="read"), ()),
        (allowed("required", "read", "b"), ToolChoice(mode="any"), ()),
        (allowed("auto", "b"), ToolChoice(), ("tool_choice.allowed_tools",)),
    ],
)
def test_a_choice_among_tools_is_read(wanted: Any, choice: ToolChoice, ignored: Any) -> None:
    read = parse_chat(body(tools=[TOOL, {"type": "function", "function": {"name": "b"}}], tool_choice=wanted))
    assert (read.tool_choice, read.hints.ignored) == (choice, ignored)


@pytest.mark.parametrize(("wanted", "parallel"), [(None, True), (True, True), (False, False)])
def test_several_calls_at_once_can_be_forbidden(wanted: Any, parallel: bool) -> None:
    assert parse_chat(body(tools=[TOOL], parallel_tool_calls=wanted)).tool_choice.parallel == parallel


@pytest.mark.parametrize(
    ("wanted", "form"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, OutputFormat(schema='{"type":"object"}')),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}, "strict": True}},
            OutputFormat(schema='{"type": "array"}'),
        ),
    ],
)
def test_the_form_of_the_text_is_read(wanted: Any, form: Any) -> None:
    assert parse_chat(body(response_format=wanted)).output_format == form


@pytest.mark.parametrize(
    ("wanted", "thinking", "effort", "ignored"),
    [
        (None, "default", "", ()),
        ("none", "off", "", ()),
        ("xhigh", "default", "xhigh", ()),
        ("heroic", "default", "", ("reasoning_effort",)),
    ],
)
def test_effort_is_read_and_none_of_it_is_no_thinking(wanted: Any, thinking: str, effort: str, ignored: Any) -> None:
    read = parse_chat(body(reasoning_effort=wanted))
    assert (read.thinking, read.effort, read.hints.ignored) == (thinking, effort, ignored)


def test_all_wishes_to_the_sampler_are_read() -> None:
    read = parse_chat(
        body(
            max_tokens=9, max_completion_tokens=5, temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=3, stop="x",
            presence_penalty=-2, frequency_penalty=1.5, repetition_penalty=1.1, logit_bias={"7": -100, "0": 1}, n=2,
            logprobs=True, top_logprobs=3,
        )
    )  # fmt: skip
    assert read.limits == Limits(
        max_tokens=5, temperature=0.5, top_p=0.9, top_k=0, min_p=0.1, seed=3, stop=("x",), presence_penalty=-2,
        frequency_penalty=1.5, repetition_penalty=1.1, logit_bias=((7, -100), (0, 1)), choices=2, logprobs=3,
    )  # fmt: skip
    assert parse_chat(body()).limits == Limits()


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [
        ({}, None),
        ({"logprobs": None}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_log_probabilities_are_wanted_with_or_without_alternatives(fields: Any, alternatives: int | None) -> None:
    assert parse_chat(body(**fields)).limits.logprobs == alternatives


def test_streaming_and_its_usage_are_read() -> None:
    asked = body(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    read = parse_chat(asked)
    assert (read.stream, read.stream_usage, read.hints.ignored) == (True, True, ())
    assert parse_chat(body(stream_options=None)).stream_usage is False


def test_a_cache_key_is_a_session_hint() -> None:
    assert parse_chat(body(prompt_cache_key="k" * 300)).hints.session == "k" * 256
    assert parse_chat(body(prompt_cache_key=5)).hints.session == ""


def test_what_changes_no_answer_is_fine() -> None:
    inert = {
        "user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prediction": {"type": "content"},
        "safety_identifier": "s", "prompt_cache_retention": "24h", "best_of": 1, "use_beam_search": False,
        "length_penalty": 1.0, "modalities": ["text"], "echo": False, "documents": [], "audio": None, "tools": [],
        "tool_choice": "auto", "function_call": "auto", "functions": [],
    }  # fmt: skip
    assert parse_chat(body(**inert)) == parse_chat(body())


def test_hints_that_nothing_follows_are_reported() -> None:
    read = parse_chat(body(messages=[{**USER, "name": "n"}], verbosity="high"))
    assert read.hints.ignored == ("messages[].name", "verbosity")
    assert read.messages == parse_chat(body()).messages
    assert parse_chat(body(messages=[{**USER, "name": None}])).hints.ignored == ()


def content(*parts: Any, role: str = "user") -> Any:
    return {"messages": [{"role": role, "content": list(parts), "tool_call_id": "c"}]}


REFUSED = [
    ({"messages": [{"role": "ghost", "content": "x"}]}, "messages[0].role: `ghost` is not a role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content: field required"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content: field required"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id: field required"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role: `function` needs a message"),
    ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio: audio answers are not supported"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [called(type="custom")]}]},
        "messages[0].tool_calls[0]: calls of type `custom` are not supported",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}]},
        "messages[0].tool_calls[0].function: field required",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
        "messages[0].tool_calls[0]: Object missing required field `id`",
    ),
    (content({"type": "text"}), "messages[0].content[0].text: field required"),
    (content({"type": "hologram"}), "messages[0].content[0]: content of type `hologram` is not supported here"),
    (content({"type": "image_url"}), "messages[0].content[0].image_url: field required"),
    (content({"type": "image_url", "image_url": {}}), "messages[0].content[0].image_url: Object missing required"),
    (content({"type": "image_url", "image_url": "x"}, role="assistant"), "messages[0].content[0]: content of type"),
    (content({"type": "image_url", "image_url": "x"}, role="system"), "messages[0].content[0]: content of type"),
    (content({"type": "refusal", "refusal": "x"}), "messages[0].content[0]: content of type `refusal`"),
    (content({"type": "input_audio", "input_audio": {}}, role="tool"), "messages[0].content[0]: content of type"),
    ({"tools": [{"type": "web_search"}]}, "tools: only functions can be called here, not `web_search`"),
    ({"tools": [{"type": "function"}]}, "tools[0].function: field required"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].name: a tool needs a name"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]},
        "tools[0].parameters: Expected `object`, got `array`",
    ),
    ({"tool_choice": "required"}, "tool_choice: a call is required, but there are no tools"),
    ({"tool_choice": "maybe"}, "tool_choice: `maybe` is not a choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "b"}}},
        "tool_choice: there is no tool `b`",
    ),
    ({"tools": [TOOL], "tool_choice": {"type": "custom"}}, "tool_choice.type: `custom` is not supported"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools: field required"),
    ({"response_format": {"type": "grammar"}}, "response_format.type: `grammar` is not supported"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: field required"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
        "response_format.json_schema.schema: Expected `object`, got `int`",
    ),
    ({"max_tokens": 0}, "max_tokens: must be at least 1"),
    ({"n": 0}, "n: must be between 1 and 128"),
    ({"n": True}, "n: Expected `int | null`, got `bool`"),
    ({"top_logprobs": 2}, "top_logprobs: needs `logprobs` to be true"),
    ({"logprobs": 2}, "logprobs: Expected `bool | null`, got `int`"),
    ({"presence_penalty": 2.1}, "presence_penalty: must be between -2 and 2"),
    ({"frequency_penalty": "1"}, "frequency_penalty: Expected `float | null`, got `str`"),
    ({"repetition_penalty": 0}, "repetition_penalty: must be between 0.01 and 100"),
    ({"min_p": 2}, "min_p: must be between 0 and 1"),
    ({"seed": 2**70}, "seed: must be between"),
    ({"logit_bias": {"a": 1}}, "logit_bias: `a` is not a token id"),
    ({"logit_bias": {"-1": 1}}, "logit_bias: `-1` is not a token id"),
    ({"logit_bias": {"١": 1}}, "logit_bias: `١` is not a token id"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5: must be between -100 and 100"),
    ({"best_of": 2}, "best_of: not supported yet"),
    ({"use_beam_search": True}, "use_beam_search: not supported yet"),
    ({"length_penalty": 2}, "length_penalty: not supported yet"),
    ({"echo": True}, "echo: not supported yet"),
    ({"documents": [{}]}, "documents: not supported yet"),
    ({"modalities": ["text", "audio"]}, "modalities: not supported yet"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs: this field belongs to an engine"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED)
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(body(**fields))
    assert str(caught.value).startswith(words)


def test_max_choices_stops_one_request_from_taking_every_slot() -> None:
    """MAX_CHOICES answers to one request."""
    assert parse_chat(body(n=MAX_CHOICES)).limits.choices == MAX_CHOICES
    with pytest.raises(InvalidRequest, match=f"n: must be between 1 and {MAX_CHOICES}"):
        parse_chat(body(n=MAX_CHOICES + 1))


def test_max_top_logprobs_stops_answers_from_growing_without_bound() -> None:
    """MAX_TOP_LOGPROBS alternatives of each token."""
    with pytest.raises(InvalidRequest, match=f"top_logprobs: must be between 0 and {MAX_TOP_LOGPROBS}"):
        parse_chat(body(logprobs=True, top_logprobs=MAX_TOP_LOGPROBS + 1))


def test_max_logit_bias_tokens_stops_a_flood_of_biases() -> None:
    """MAX_LOGIT_BIAS_TOKENS of them cost every step of a whole batch."""
    biases = {str(token): 1 for token in range(MAX_LOGIT_BIAS_TOKENS)}
    assert len(parse_chat(body(logit_bias=biases)).limits.logit_bias) == MAX_LOGIT_BIAS_TOKENS
    with pytest.raises(InvalidRequest, match=f"logit_bias: more than {MAX_LOGIT_BIAS_TOKENS} tokens"):
        parse_chat(body(logit_bias={**biases, "9999": 1}))


def test_max_sampling_field_bytes_stops_floods_before_they_are_read() -> None:
    """MAX_SAMPLING_FIELD_BYTES hold every wish that is within the other limits."""
    longest = ["\U0001f600" * MAX_STOP_SEQUENCE_CHARS] * MAX_STOP_SEQUENCES
    biases = {str(MAX_TOKEN_ID - i): -99.87654321 for i in range(MAX_LOGIT_BIAS_TOKENS)}
    read = parse_chat(body(stop=longest, logit_bias=biases)).limits
    assert (len(read.stop), len(read.logit_bias)) == (MAX_STOP_SEQUENCES, MAX_LOGIT_BIAS_TOKENS)
    for flood in ({"stop": ["a"] * MAX_SAMPLING_FIELD_BYTES}, {"logit_bias": {str(i): 1 for i in range(10_000)}}):
        with pytest.raises(InvalidRequest, match=f"more than {MAX_SAMPLING_FIELD_BYTES} bytes"):
            parse_chat(body(**flood))


def test_max_token_id_stops_ids_that_no_engine_can_hold() -> None:
    """MAX_TOKEN_ID is the last that fits where engines count in 32 bits with a sign."""
    assert parse_chat(body(logit_bias={str(MAX_TOKEN_ID): 1})).limits.logit_bias == ((MAX_TOKEN_ID, 1),)
    for token in (str(MAX_TOKEN_ID + 1), "9" * 5_000):
        with pytest.raises(InvalidRequest, match="is not a token id"):
            parse_chat(body(logit_bias={token: 1}))


def test_max_tools_stops_floods_of_tools_in_both_forms() -> None:
    """MAX_TOOLS tools, as `tools` or as `functions`."""
    with pytest.raises(InvalidRequest, match=f"tools: more than {MAX_TOOLS} tools"):
        parse_chat(body(tools=[TOOL] * (MAX_TOOLS + 1)))
    with pytest.raises(InvalidRequest, match=f"functions: more than {MAX_TOOLS} tools"):
        parse_chat(body(functions=[FUNCTION] * (MAX_TOOLS + 1)))


def test_max_blocks_per_message_stops_floods_of_parts_and_calls() -> None:
    """MAX_BLOCKS_PER_MESSAGE of either."""
    with pytest.raises(InvalidRequest, match=f"more than {MAX_BLOCKS_PER_MESSAGE} blocks"):
        parse_chat(body(**content(*[{"type": "text", "text": ""}] * (MAX_BLOCKS_PER_MESSAGE + 1))))
    with pytest.raises(InvalidRequest, match=f"more than {MAX_BLOCKS_PER_MESSAGE} calls"):
        turns({"role": "assistant", "tool_calls": [called()] * (MAX_BLOCKS_PER_MESSAGE + 1)})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "id", "image_url",
     "tool_call_id",
     "url", "reasoning", "function_call", "refusal", "parameters", "json_schema", "schema", "allowed_tools", "mode"]
)  # fmt: skip
words = st.sampled_from(["user", "assistant", "tool", "function", "system", "text", "image_url", "json_schema", "none"])
odd = st.recursive(values | words, lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=12)
fields = st.sampled_from(
    ["messages", "tools", "functions", "tool_choice", "function_call", "response_format", "logit_bias", "n", "logprobs",
     "top_logprobs", "stop", "stream_options", "reasoning_effort", "min_p", "parallel_tool_calls", "max_tokens"]
)  # fmt: skip


@given(hostile=st.dictionaries(fields, odd | st.lists(odd, max_size=3), max_size=5))
@settings(deadline=None, max_examples=300)
def test_whatever_comes_the_answer_is_a_conversation_or_a_client_error(hostile: dict[str, Any]) -> None:
    try:
        read = parse_chat(body(**hostile))
    except ClientError:
        return
    assert read.model == "m"
