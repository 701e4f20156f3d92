"""Tools, reasoning and counting, as Anthropic's own SDK sees them; what a model says is told event by event."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import pytest

from cluster.exchange import Pacing
from cluster.output.events import CallArguments, CallBroken, CallEnd, CallStart, TextDelta, ThinkingDelta
from cluster.tenants import Tenants
from router.errors import ReplicaDied
from tests.cluster.support import packed, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from cluster.models.served import ServedModel
    from cluster.output.events import Event
    from tests.cluster.support import Service

    Tell = Callable[..., None]

pytestmark = pytest.mark.anyio
USER: Any = {"role": "user", "content": "Which sensors failed last night?"}
SCHEMA: Any = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ: Any = {"name": "read_log", "description": "Reads a log of the station.", "input_schema": SCHEMA}
SEARCH: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
TWO_CALLS = (
    ThinkingDelta("Both "),
    ThinkingDelta("logs."),
    TextDelta("I read them, 風."),
    CallStart("functions.read_log:0", "read_log"),
    CallArguments('{"path": '),
    CallArguments('"a/é.txt"}'),
    CallEnd(),
    CallStart("functions.read_log:1", "read_log"),
    CallArguments('{"path": "b.txt", "lines": 1.0}'),
    CallEnd(),
)
BROKEN = (
    TextDelta("Well: "),
    CallStart("c", "read_log"),
    CallArguments('{"path": "a'),
    CallBroken(),
    TextDelta('<call>{"path": "a\n</call>'),
)


class Teller:
    """Tells one event for each token, and the last ones over and over."""

    def __init__(self, events: Sequence[Event], again: Sequence[Event]) -> None:
        self._events = [*events]
        self._again = again
        self.is_thinking = False

    def push(self, text: str, token: int) -> Sequence[Event]:
        events = [self._events.pop(0)] if self._events else self._again
        self.is_thinking = any(isinstance(event, ThinkingDelta) for event in events)
        return events

    def finish(self, text: str) -> Sequence[Event]:
        assert not self._events
        return ()

    def passes(self, _data: bytes, _tokens: bytes) -> bool:
        return False


@pytest.fixture
def tell(served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Make the model of a service say events."""

    def telling(service: Service, *events: Event, again: Sequence[Event] = ()) -> None:
        monkeypatch.setattr(served, "parser", lambda *_: Teller(events, again))
        service.engine.script = [packed([300])] * len(events)

    return telling


@pytest.fixture
async def sdk(service: Service) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=service.url, api_key="any", max_retries=0) as opened:
        yield opened


async def answer(sdk: anthropic.AsyncAnthropic, *, stream: bool, **fields: Any) -> anthropic.types.Message:
    """The message, as either of the SDK's ways gives it."""
    ask = {"model": "tiny", "max_tokens": 50, "messages": [USER], **fields}
    if not stream:
        whole: anthropic.types.Message = await sdk.messages.create(**ask)
        return whole
    async with sdk.messages.stream(**ask) as events:
        final: anthropic.types.Message = await events.get_final_message()
        return final


@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_text_and_parallel_calls_reach_the_client_in_order(
    service: Service, sdk: anthropic.AsyncAnthropic, tell: Tell, stream: bool
) -> None:
    tell(service, *TWO_CALLS)
    message = await answer(sdk, stream=stream, tools=[READ], thinking={"type": "adaptive"})
    thinking, text, first, second = (block.to_dict() for block in message.content)
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Both logs.")
    assert thinking["signature"]
    assert text["text"] == "I read them, 風."
    assert (first["name"], first["input"]) == ("read_log", {"path": "a/é.txt"})
    assert second["input"] == {"path": "b.txt", "lines": 1.0}
    assert first["id"] != second["id"]
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens == len(TWO_CALLS)
    assert message.usage.output_tokens_details is not None
    assert message.usage.output_tokens_details.thinking_tokens == 2


async def test_streamed_and_whole_answers_are_the_same(
    service: Service, sdk: anthropic.AsyncAnthropic, tell: Tell
) -> None:
    tell(service, *TWO_CALLS)
    streamed = await answer(sdk, stream=True, tools=[READ])
    whole = await answer(sdk, stream=False, tools=[READ])
    said = [[{**block.to_dict(), "signature": ""} for block in message.content] for message in (streamed, whole)]
    assert said[0] == said[1]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_broken_call_comes_as_text_and_nobody_is_asked_to_run_it(
    service: Service, sdk: anthropic.AsyncAnthropic, tell: Tell, stream: bool
) -> None:
    tell(service, *BROKEN)
    message = await answer(sdk, stream=stream, tools=[READ])
    texts = [block.text for block in message.content if block.type == "text"]
    assert "".join(texts) == 'Well: <call>{"path": "a\n</call>'
    assert message.stop_reason == "end_turn"
    assert len(message.content) == (3 if stream else 2)


async def test_a_failure_within_a_call_closes_its_block_before_the_error(service: Service, tell: Tell) -> None:
    tell(service, *TWO_CALLS[:5])
    service.engine.error = ReplicaDied("secret")
    ask = {"model": "tiny", "max_tokens": 50, "messages": [USER], "stream": True, "tools": [READ]}
    async with httpx.AsyncClient() as http:
        response = await http.post(f"{service.url}/v1/messages", json=ask)
    names = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    assert names[-3:] == ["content_block_delta", "content_block_stop", "error"]
    assert "secret" not in response.text


async def test_hidden_reasoning_is_pinged_for_and_signed(served: ServedModel, tell: Tell) -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    ask = {"model": "tiny", "max_tokens": 4_000, "messages": [USER], "stream": True, "thinking": thinking}
    async with serving({"tiny": served}, Tenants(), pacing=Pacing(ping_interval_s=0.02)) as service:
        tell(service, ThinkingDelta("secret"), again=[ThinkingDelta("secret")])
        service.engine.endless = True
        seen: list[dict[str, Any]] = []
        async with (
            httpx.AsyncClient(timeout=30) as http,
            http.stream("POST", f"{service.url}/v1/messages", json=ask) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
                if len([event for event in seen if event["type"] == "ping"]) == 3:
                    service.engine.endless = False
    kinds = [event["type"] for event in seen]
    assert kinds[:3] == ["message_start", "content_block_start", "ping"]
    assert kinds[-4:] == ["content_block_delta", "content_block_stop", "message_delta", "message_stop"]
    assert seen[-4]["delta"]["type"] == "signature_delta"
    assert "secret" not in json.dumps(seen)


@pytest.mark.parametrize("stream", [True, False])
async def test_no_tokens_at_all_fill_the_cache_and_say_nothing(
    service: Service, sdk: anthropic.AsyncAnthropic, stream: bool
) -> None:
    message = await answer(sdk, stream=stream, max_tokens=0)
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)
    assert [job.sampling.max_tokens for job in service.backend.jobs] == [1]


async def test_counting_sees_tools_and_system_messages_and_needs_no_cluster(
    service: Service, sdk: anthropic.AsyncAnthropic, tell: Tell
) -> None:
    tell(service, TextDelta("Two."))
    later: Any = {"role": "system", "content": "The wind logger is offline."}
    turns = [USER, {"role": "assistant", "content": "Two."}, USER, later]
    fields: Any = {"system": "Be brief.", "messages": turns, "tools": [READ], "thinking": {"type": "adaptive"}}
    message = await answer(sdk, stream=False, **fields)
    service.backend.routable = False
    counted = await sdk.messages.count_tokens(model="tiny", **fields)
    fewer = await sdk.messages.count_tokens(model="tiny", system="Be brief.", messages=turns[:1])
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert fewer.input_tokens < counted.input_tokens
    assert len(service.backend.jobs) == 1


REFUSED: Any = [
    ({"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice: `web_search` is a"),
    ({"messages": [{"role": "user", "content": [{"type": "novel"}]}]}, "messages[0].content[0]: content of type"),
    ({"tools": [{"name": "n"}]}, "tools[0].input_schema: field required"),
    ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs: this field belongs to an engine"),
]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens?beta=true"])
@pytest.mark.parametrize(("fields", "words"), REFUSED)
async def test_what_is_refused_is_told_in_this_protocol_and_reaches_nobody(
    service: Service, path: str, fields: Any, words: str
) -> None:
    ask = {"model": "tiny", "max_tokens": 50, "messages": [USER], "stream": True, **fields}
    async with httpx.AsyncClient() as http:
        response = await http.post(service.url + path, json=ask)
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert body["error"]["message"].startswith(words)
    assert body["request_id"] == response.headers["request-id"]
    assert service.backend.jobs == []


async def test_what_is_not_followed_is_reported(service: Service, sdk: anthropic.AsyncAnthropic, tell: Tell) -> None:
    tell(service, TextDelta("Two."))
    headers = {"anthropic-beta": "novel-2027-01-01"}
    await answer(sdk, stream=False, tools=[SEARCH, READ], extra_body={"novel": 1}, extra_headers=headers)
    report = await service.ended()
    assert report.ignored == ("novel", "tools[] of type web_search_20250305")
    assert report.betas == ("novel-2027-01-01",)
