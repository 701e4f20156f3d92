"""OpenAI's own SDK: reasoning, tools and forms of a chat, read by the model's own parser, whole and streamed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from cluster.output.events import CallArguments, CallBroken, CallEnd, CallStart, TextDelta
from tests.cluster.support import spoken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from cluster.models.served import ServedModel
    from cluster.output.events import Event
    from tests.cluster.support import Service

pytestmark = pytest.mark.anyio
USER: Any = {"role": "user", "content": "How is the weather in Lund?"}
PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Says it.", "parameters": PARAMETERS}}
]
ASK: Any = {"model": "tiny", "messages": [USER], "tools": TOOLS}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Lund, né 風", "days": 2}}\n</tool_call>'
ANSWER = f"<think>\nHm, look.\n</think>\n\nI look.\n{CALL}"


@pytest.fixture
async def sdk(service: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


class Teller:
    """A parser that tells these events with the first token, whatever it is."""

    is_thinking = False

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    def push(self, text: str, token: int) -> Sequence[Event]:
        events, self._events = self._events, ()
        return events

    def finish(self, text: str) -> Sequence[Event]:
        return ()

    def passes(self, _data: bytes, _tokens: bytes) -> bool:
        return False


async def test_reasoning_text_and_a_call_are_told_apart(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, ANSWER)
    answer = await sdk.chat.completions.create(**ASK)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.model_extra or {})["reasoning_content"].strip() == "Hm, look."
    assert (choice.message.content or "").strip() == "I look."
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Lund, né 風", "days": 2})
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert 0 < (answer.usage.completion_tokens_details.reasoning_tokens or 0) < answer.usage.completion_tokens


async def test_the_sdk_folds_a_stream_into_the_same_answer(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, f"{ANSWER}\n{CALL}")
    thought = ""
    async with sdk.chat.completions.stream(**ASK) as stream:
        async for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                thought += (event.chunk.choices[0].delta.model_extra or {}).get("reasoning_content", "")
        streamed = (await stream.get_final_completion()).choices[0]
    whole = (await sdk.chat.completions.create(**ASK)).choices[0]
    assert (streamed.finish_reason, streamed.message.content) == (whole.finish_reason, whole.message.content)
    assert thought == (whole.message.model_extra or {})["reasoning_content"]
    for calls in (streamed.message.tool_calls, whole.message.tool_calls):
        assert calls is not None
        assert [call.function.name for call in calls if call.type == "function"] == ["weather", "weather"]
        assert len({call.id for call in calls}) == 2


async def test_arguments_are_streamed_before_they_are_complete(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    """In order, as they are generated."""
    service.engine.script = spoken(served, CALL)
    parts: list[str] = []
    async for chunk in await sdk.chat.completions.create(**ASK, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.index == 0
            parts.append((call.function and call.function.arguments) or "")
    assert parts[0] == ""
    assert json.loads("".join(parts)) == {"city": "Lund, né 風", "days": 2}


async def test_a_turn_that_comes_back_with_its_result_extends_the_prompt(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    """Qwen Code sends results as lists of parts, OpenCode as strings: both are the same prompt."""
    service.engine.script = spoken(served, ANSWER)
    message = (await sdk.chat.completions.create(**ASK)).choices[0].message
    assert message.tool_calls is not None
    turn = message.model_dump(exclude_none=True)
    for content in ("Dry.", [{"type": "text", "text": "Dry."}]):
        result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": content}
        await sdk.chat.completions.create(**{**ASK, "messages": [USER, turn, result]})
    first, as_text, as_parts = (job.tokens for job in service.backend.jobs)
    assert as_text == as_parts
    assert as_text.startswith(first + b"".join(service.engine.script))


async def test_a_call_that_breaks_is_text_and_nobody_runs_it(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamed, its arguments stay no JSON; whole, there is only the text."""
    events = (CallStart("c", "weather"), CallArguments('{"city'), CallBroken(), TextDelta('weather {"city'))
    monkeypatch.setattr(served, "parser", lambda *_: Teller(events))
    whole = (await sdk.chat.completions.create(**ASK)).choices[0]
    assert (whole.message.content, whole.message.tool_calls, whole.finish_reason) == ('weather {"city', None, "stop")
    stream = await sdk.chat.completions.create(**ASK, stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == 'weather {"city'
    assert chunks[-1].finish_reason == "stop"


async def test_every_choice_counts_its_own_calls(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = (CallStart("c", "weather"), CallArguments("{}"), CallEnd())
    monkeypatch.setattr(served, "parser", lambda *_: Teller(events))
    indices: list[tuple[int, int]] = []
    async for chunk in await sdk.chat.completions.create(**ASK, n=2, stream=True):
        indices += [(chunk.choices[0].index, call.index) for call in chunk.choices[0].delta.tool_calls or () if call.id]
    assert sorted(indices) == [(0, 0), (1, 0)]


async def test_a_wanted_form_and_a_required_call_reach_the_engine_as_constraints(
    service: Service, sdk: openai.AsyncOpenAI
) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS}}
    await sdk.chat.completions.create(model="tiny", messages=[USER], response_format=form, reasoning_effort="none")
    await sdk.chat.completions.create(**ASK, tool_choice="required", reasoning_effort="none")
    await sdk.chat.completions.create(**ASK)
    formed, required, free = (job.sampling.structured for job in service.backend.jobs)
    assert formed is not None
    assert "days" in formed.spec
    assert required is not None
    assert "weather" in required.spec
    assert free is None


async def test_a_prompt_of_completions_is_answered_with_text_alone(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    """What looks like a call or like reasoning is what the model wrote."""
    service.engine.script = spoken(served, ANSWER)
    answer = await sdk.completions.create(model="tiny", prompt="Once", max_tokens=1_000)
    assert answer.choices[0].text == served.vocabulary.bytes_of(b"".join(service.engine.script)).decode()
    assert answer.choices[0].finish_reason == "stop"
