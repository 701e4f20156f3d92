"""The OpenAI SDK against a Kvist cluster: chat, completions and responses, whole and streamed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.e2e.clients import answers

if TYPE_CHECKING:
    from tests.e2e.cluster_process import ServeProcess

pytestmark = pytest.mark.ray

BLOCK_SIZE = 32
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
FUNCTION = {"name": "get_weather", "description": "The weather of the next days.", "parameters": PARAMETERS}
CHAT_TOOLS: Any = [{"type": "function", "function": FUNCTION}]
RESPONSES_TOOLS: Any = [{"type": "function", "strict": False, **FUNCTION}]


class Forecast(BaseModel):
    """What a structured answer must hold."""

    city: Literal["Malmö", "Lund"]
    is_dry: bool


@pytest.fixture
def sdk(cluster: ServeProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="dummy", max_retries=0)


def chat(question: str, *later: Any) -> Any:
    return {"model": "tiny", "tools": CHAT_TOOLS, "messages": [{"role": "user", "content": question}, *later]}


def test_chat_streams_reasoning_text_and_calls_and_the_next_turn_extends_them(sdk: openai.OpenAI) -> None:
    """The last chunk carries usage; with the turn returned, reasoning too, its tokens are found in the cache."""
    with sdk.chat.completions.stream(
        **chat(answers.WEATHER_QUESTION), stream_options={"include_usage": True}
    ) as stream:
        thoughts = [
            (event.chunk.choices[0].delta.model_extra or {}).get("reasoning_content") or ""
            for event in stream
            if event.type == "chunk" and event.chunk.choices
        ]
        final = stream.get_final_completion()
    message, usage = final.choices[0].message, final.usage
    thought = "".join(thoughts)
    assert thought.strip() == answers.WEATHER_THOUGHT
    assert (message.content or "").strip() == answers.WEATHER_LEAD
    assert final.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", answers.WEATHER_ARGUMENTS)
    assert usage is not None
    turn = {
        "role": "assistant",
        "content": message.content,
        "reasoning_content": thought,
        "tool_calls": [
            {"id": call.id, "type": "function", "function": call.function.model_dump(include={"name", "arguments"})}
        ],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": answers.WEATHER_REPORT}
    second = sdk.chat.completions.create(**chat(answers.WEATHER_QUESTION, turn, result))
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == (answers.WEATHER_ANSWER, "stop")
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= usage.total_tokens - 2 * BLOCK_SIZE


def test_parallel_calls_of_a_chat_keep_their_order(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(**chat(answers.BOTH_QUESTION)) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls or []
    whole = sdk.chat.completions.create(**chat(answers.BOTH_QUESTION)).choices[0].message.tool_calls or []
    for calls in (streamed, whole):
        assert [
            json.loads(call.function.arguments) for call in calls if call.type == "function"
        ] == answers.BOTH_ARGUMENTS
        assert len({call.id for call in calls}) == 2


def test_a_structured_chat_answer_is_an_instance_of_its_schema(sdk: openai.OpenAI) -> None:
    parsed = sdk.chat.completions.parse(
        model="tiny", messages=[{"role": "user", "content": "Is it dry?"}], response_format=Forecast
    )
    assert parsed.choices[0].message.parsed == Forecast(city="Malmö", is_dry=False)


def test_two_choices_of_a_chat_are_two_answers(sdk: openai.OpenAI) -> None:
    """The prompt is counted once."""
    one = sdk.chat.completions.create(**chat(answers.PLAIN_QUESTION))
    two = sdk.chat.completions.create(**chat(answers.PLAIN_QUESTION), n=2)
    assert [choice.message.content for choice in two.choices] == [answers.PLAIN_ANSWER] * 2
    assert [choice.index for choice in two.choices] == [0, 1]
    assert one.usage is not None
    assert two.usage is not None
    assert two.usage.prompt_tokens == one.usage.prompt_tokens
    assert two.usage.completion_tokens == 2 * one.usage.completion_tokens


def test_completions_continue_a_text_without_a_template(sdk: openai.OpenAI) -> None:
    """Streamed and whole alike."""
    whole = sdk.completions.create(model="tiny", prompt=answers.PLAIN_QUESTION, max_tokens=50)
    pieces = list(sdk.completions.create(model="tiny", prompt=answers.PLAIN_QUESTION, max_tokens=50, stream=True))
    assert whole.choices[0].text == answers.PLAIN_ANSWER
    assert "".join(choice.text for piece in pieces for choice in piece.choices) == answers.PLAIN_ANSWER
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert 0 < whole.usage.prompt_tokens < 10


def test_a_fault_in_mid_chat_is_an_error_and_not_an_end(sdk: openai.OpenAI) -> None:
    said: list[str] = []
    with pytest.raises(openai.APIError):
        listen(sdk, said)
    assert "".join(said)
    assert answers.BROKEN_TEXT.startswith("".join(said))


def listen(sdk: openai.OpenAI, said: list[str]) -> None:
    """Add what is said to `said`."""
    for piece in sdk.chat.completions.create(**chat(answers.BROKEN_QUESTION), stream=True):
        said.extend(choice.delta.content or "" for choice in piece.choices)


def responses(*items: Any) -> Any:
    question = {"role": "user", "content": answers.WEATHER_QUESTION}
    return {"model": "tiny", "tools": RESPONSES_TOOLS, "store": False, "input": [question, *items]}


def test_a_response_streams_a_function_call_and_takes_its_output(sdk: openai.OpenAI) -> None:
    """All items go back as they came, as agents do."""
    with sdk.responses.stream(**responses()) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert {"response.output_text.delta", "response.function_call_arguments.delta"} <= set(kinds)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call = first.output[-1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", answers.WEATHER_ARGUMENTS)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": answers.WEATHER_REPORT}
    returned = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in first.output]
    second = sdk.responses.create(**responses(*returned, result))
    assert second.output_text == answers.WEATHER_ANSWER
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 2 * BLOCK_SIZE


def test_a_whole_response_says_the_same_as_a_streamed_one(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(**responses()) as stream:
        streamed = stream.get_final_response()
    whole = sdk.responses.create(**responses())
    assert without_ids(whole) == without_ids(streamed)


def without_ids(response: Any) -> list[dict[str, Any]]:
    return [
        item.model_dump(exclude_none=True, exclude={"id", "call_id", "parsed_arguments"}) for item in response.output
    ]
