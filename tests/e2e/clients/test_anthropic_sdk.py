"""The Anthropic SDK against a Kvist cluster: its own helpers understand every answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import anthropic
import pytest
from pydantic import BaseModel

from tests.e2e.clients import answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.cluster_process import ServeProcess

pytestmark = pytest.mark.ray

BLOCK_SIZE = 32
TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "The weather of the next days.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    }
]


class Forecast(BaseModel):
    """What a structured answer must hold."""

    city: Literal["Malmö", "Lund"]
    is_dry: bool


@pytest.fixture
def sdk(cluster: ServeProcess) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=cluster.url, api_key="dummy", max_retries=0)


def request(question: str, *later: dict[str, Any]) -> Any:
    """The parameters of one request with tools and thinking."""
    return {
        "model": "tiny",
        "max_tokens": 2000,
        "system": "You know the weather of Skåne.",
        "tools": TOOLS,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [{"role": "user", "content": question}, *later],
    }


def streamed(sdk: anthropic.Anthropic, parameters: Any) -> anthropic.types.Message:
    with sdk.messages.stream(**parameters) as stream:
        return stream.get_final_message()


def summary(message: anthropic.types.Message) -> tuple[Any, ...]:
    """All that does not name this one answer."""
    return (message.role, message.model, message.stop_reason, message.stop_sequence, contents(message.content))


def contents(blocks: Sequence[Any]) -> list[dict[str, Any]]:
    return [block.model_dump(exclude={"id", "signature"}) for block in blocks]


def test_thinking_text_and_a_tool_call_arrive_as_blocks_and_the_next_turn_extends_them(
    sdk: anthropic.Anthropic,
) -> None:
    """The blocks go back as they came; what was generated is then found in the cache, its last block aside."""
    first = streamed(sdk, request(answers.WEATHER_QUESTION))
    thought, lead, call = cast(Any, first.content)
    assert (thought.type, lead.type, call.type, first.stop_reason) == ("thinking", "text", "tool_use", "tool_use")
    assert (thought.thinking.strip(), lead.text.strip()) == (answers.WEATHER_THOUGHT, answers.WEATHER_LEAD)
    assert thought.signature
    assert (call.name, call.input) == ("get_weather", answers.WEATHER_ARGUMENTS)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": answers.WEATHER_REPORT}
    turns: Any = ({"role": "assistant", "content": first.content}, {"role": "user", "content": [result]})
    second = streamed(sdk, request(answers.WEATHER_QUESTION, *turns))
    assert [(block.type, getattr(block, "text", "")) for block in second.content] == [("text", answers.WEATHER_ANSWER)]
    assert second.stop_reason == "end_turn"
    before = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0) + first.usage.output_tokens
    assert (second.usage.cache_read_input_tokens or 0) >= before - 2 * BLOCK_SIZE


def test_parallel_tool_calls_keep_their_order_and_have_ids_of_their_own(sdk: anthropic.Anthropic) -> None:
    """Their arguments arrive in pieces, one call after the other."""
    with sdk.messages.stream(**request(answers.BOTH_QUESTION)) as stream:
        pieces = [(event.index, event.delta.type) for event in stream if event.type == "content_block_delta"]
        final = stream.get_final_message()
    calls = [block for block in final.content if block.type == "tool_use"]
    assert [call.input for call in calls] == answers.BOTH_ARGUMENTS
    assert len({call.id for call in calls}) == len(final.content) == 2
    assert pieces == sorted(pieces)
    assert len(pieces) > len(calls)
    assert {kind for _, kind in pieces} == {"input_json_delta"}


@pytest.mark.parametrize("question", [answers.WEATHER_QUESTION, answers.BOTH_QUESTION, answers.PLAIN_QUESTION])
def test_a_whole_answer_says_the_same_as_a_streamed_one(sdk: anthropic.Anthropic, question: str) -> None:
    whole, pieces = sdk.messages.create(**request(question)), streamed(sdk, request(question))
    assert summary(whole) == summary(pieces)
    assert whole.usage.output_tokens == pieces.usage.output_tokens


def test_counted_tokens_are_those_of_the_request(sdk: anthropic.Anthropic) -> None:
    """Tools and system text included."""
    parameters = request(answers.PLAIN_QUESTION)
    usage = sdk.messages.create(**parameters).usage
    del parameters["max_tokens"]
    counted = sdk.messages.count_tokens(**parameters).input_tokens
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_structured_answer_is_an_instance_of_its_schema(sdk: anthropic.Anthropic) -> None:
    parsed = sdk.messages.parse(
        model="tiny", max_tokens=200, messages=[{"role": "user", "content": "Is it dry?"}], output_format=Forecast
    )
    assert parsed.parsed_output == Forecast(city="Malmö", is_dry=False)


def test_a_long_prefill_is_bridged_by_pings(sdk: anthropic.Anthropic) -> None:
    """The answer begins at once and is kept alive; else proxies and clients would give up."""
    with sdk.messages.with_streaming_response.create(**request(answers.STALLED_QUESTION), stream=True) as response:
        names = [line.removeprefix("event: ") for line in response.iter_lines() if line.startswith("event: ")]
    assert names[0] == "message_start"
    assert "ping" in names[: names.index("content_block_delta")]
    assert names[-2:] == ["message_delta", "message_stop"]
    assert names.count("message_start") == 1


def test_a_fault_in_mid_answer_is_an_error_and_not_an_end(sdk: anthropic.Anthropic) -> None:
    """What came before is there; the SDK raises the protocol's own error."""
    said: list[str] = []
    with pytest.raises(anthropic.APIStatusError) as fault:
        listen(sdk, said)
    assert said
    assert answers.BROKEN_TEXT.startswith("".join(said))
    assert isinstance(fault.value.body, dict)
    assert fault.value.body["error"]["type"] in {"api_error", "overloaded_error"}


def listen(sdk: anthropic.Anthropic, said: list[str]) -> None:
    """Add what is said to `said`."""
    with sdk.messages.stream(**request(answers.BROKEN_QUESTION)) as stream:
        said.extend(stream.text_stream)
