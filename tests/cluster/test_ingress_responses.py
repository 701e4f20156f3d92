"""OpenAI's own SDK against `/v1/responses`, and what agents do with it over many turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from cluster.exchange import Pacing
from cluster.output.events import CallArguments, CallBroken, CallEnd, CallStart, TextDelta, ThinkingDelta
from cluster.tenants import Tenant, Tenants
from router.errors import ReplicaDied
from tests.cluster.support import packed, serving, spoken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from cluster.models.served import ServedModel
    from cluster.output.events import Event
    from tests.cluster.support import Service

pytestmark = pytest.mark.anyio
ASK: Any = {"model": "tiny", "input": "Which sensors failed last night?"}
READ: Any = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}, "strict": False}
TOOLS: Any = [
    READ,
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [READ]},
]


class Scripted:
    """Says one given event per token, whatever the tokens are."""

    is_thinking = False

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = list(events)

    def push(self, _text: str, _token: int) -> Sequence[Event]:
        return [self._events.pop(0)] if self._events else []

    def finish(self, _text: str) -> Sequence[Event]:
        return self._events

    def passes(self, _data: bytes, _tokens: bytes) -> bool:
        return False


def client(service: Service, key: str = "any") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
async def sdk(service: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client(service) as opened:
        yield opened


@pytest.fixture
async def http(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as opened:
        yield opened


def script(service: Service, served: ServedModel, monkeypatch: pytest.MonkeyPatch, *events: Event) -> None:
    """The next answers say these events."""
    service.engine.script = [packed([300])] * len(events)
    monkeypatch.setattr(served, "parser", lambda *_: Scripted(events))


def without_ids(item: Any) -> dict[str, Any]:
    """What was said, and not what the SDK adds."""
    said: dict[str, Any] = item.to_dict(exclude_unset=False, exclude_none=True)
    return {name: value for name, value in said.items() if name not in ("id", "parsed_arguments")}


async def test_an_answer_has_text_and_usage(service: Service, sdk: openai.AsyncOpenAI, served: ServedModel) -> None:
    service.engine.script = spoken(served, "The vane, né 風.")
    service.engine.cached_tokens = 6
    answer = await sdk.responses.create(**ASK, instructions="Be brief.", metadata={"a": "b"})
    assert (answer.output_text, answer.status, answer.error) == ("The vane, né 風.", "completed", None)
    assert (answer.instructions, answer.metadata) == ("Be brief.", {"a": "b"})
    assert answer.usage is not None
    assert answer.usage.input_tokens == len(service.backend.jobs[0].tokens) // 4
    assert answer.usage.input_tokens_details.cached_tokens == 6
    assert answer.usage.output_tokens == len(service.engine.script)


async def test_a_stream_adds_up_to_the_same_answer(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "One. Two. né 風.")
    whole = await sdk.responses.create(**ASK)
    async with sdk.responses.stream(**ASK) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert final.output_text == whole.output_text
    assert final.usage == whole.usage
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"


async def test_reasoning_and_calls_are_streamed_as_items(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(
        service,
        served,
        monkeypatch,
        *(ThinkingDelta("Hm"), ThinkingDelta("m."), TextDelta("I read."), CallStart("c1", "read")),
        *(CallArguments('{"p": '), CallArguments("1.0}"), CallEnd(), CallStart("c2", "patch")),
        *(
            CallArguments('{"input": "a\\nb"}'),
            CallEnd(),
            CallStart("c3", "agents__read"),
            CallArguments("{}"),
            CallEnd(),
        ),
    )
    asked: Any = {**ASK, "tools": TOOLS, "include": ["reasoning.encrypted_content"]}
    async with sdk.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    reasoning, message, call, patch, nested = final.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "Hmm."
    assert message.type == "message"
    assert (call.type, call.call_id, call.name, call.arguments) == ("function_call", "c1", "read", '{"p": 1.0}')  # type: ignore[union-attr]
    assert (patch.type, patch.input) == ("custom_tool_call", "a\nb")  # type: ignore[union-attr]
    assert (nested.name, nested.namespace) == ("read", "agents")  # type: ignore[union-attr]
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == '{"p": 1.0}{}'
    whole = await sdk.responses.create(**asked)
    assert list(map(without_ids, whole.output)) == list(map(without_ids, final.output))


async def test_what_a_model_writes_between_its_marks_is_reasoning_and_calls(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    """By the model's own parser; the reasoning is counted."""
    call = '<tool_call>\n{"name": "agents__read", "arguments": {"p": 1.0, "q": "é"}}\n</tool_call>'
    service.engine.script = spoken(served, f"<think>\nHm, look.\n</think>\n\nI look.\n{call}")
    answer = await sdk.responses.create(**ASK, tools=TOOLS)
    said = [{**without_ids(item), "call_id": ""} for item in answer.output]
    assert [item["type"] for item in said] == ["reasoning", "message", "function_call"]
    assert said[0]["content"] == [{"type": "reasoning_text", "text": "Hm, look."}]
    assert (said[2]["namespace"], said[2]["name"], said[2]["arguments"]) == ("agents", "read", '{"p": 1.0, "q": "é"}')
    assert answer.output_text.strip() == "I look."
    assert answer.usage is not None
    assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens


async def test_an_answer_comes_back_as_it_was_said(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way: sent again as items, with sealed reasoning alone, or continued by its id."""
    script(
        service,
        served,
        monkeypatch,
        *(
            ThinkingDelta("Hmm."),
            TextDelta("I read."),
            CallStart("c1", "agents__read"),
            CallArguments('{"p": 1.0}'),
            CallEnd(),
        ),
    )
    asked: Any = {"model": "tiny", "tools": TOOLS, "instructions": "Be brief."}
    first = await sdk.responses.create(**asked, input=ASK["input"], include=["reasoning.encrypted_content"])
    items: Any = [item.to_dict() for item in first.output]
    sealed: Any = [
        {name: value for name, value in item.items() if name != "content" or item["type"] == "message"}
        for item in items
    ]
    result: Any = {"type": "function_call_output", "call_id": "c1", "output": "done"}
    question: Any = {"role": "user", "content": ASK["input"]}
    await sdk.responses.create(**asked, input=[question, *items, result], store=False)
    await sdk.responses.create(**asked, input=[question, *sealed, result], store=False)
    await sdk.responses.create(**asked, input=[result], previous_response_id=first.id, store=False)
    _, *again = service.backend.jobs
    assert len({job.tokens for job in again}) == 1
    assert len(again) == 3
    assert b"".join(service.engine.script) in again[0].tokens, "the model reads its own words, as it wrote them"


async def test_a_call_that_breaks_is_told_as_text_and_ends_no_stream(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(
        service,
        served,
        monkeypatch,
        *(CallStart("c1", "read"), CallArguments('{"p": '), CallBroken(), TextDelta('<call>{"p": ]')),
    )
    async with sdk.responses.stream(**ASK, tools=TOOLS) as stream:
        final = await stream.get_final_response()
    assert [item.type for item in final.output] == ["message"]
    whole = await sdk.responses.create(**ASK, tools=TOOLS)
    assert final.output_text == whole.output_text == '<call>{"p": ]'


async def test_an_answer_cut_short_is_incomplete(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "one two three")
    cut = await sdk.responses.create(**ASK, max_output_tokens=1)
    assert cut.incomplete_details is not None
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    stream = await sdk.responses.create(**ASK, max_output_tokens=1, stream=True)
    assert [event.type async for event in stream][-1] == "response.incomplete"


async def test_all_protocols_give_the_same_prompt(service: Service, http: httpx.AsyncClient) -> None:
    question = {"role": "user", "content": ASK["input"]}
    orders = [{"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Be kind."}]
    await http.post(
        "/v1/responses", json={"model": "tiny", "instructions": "Be brief.", "input": [orders[1], question]}
    )
    await http.post("/v1/responses", json={"model": "tiny", "input": [*orders, question]})
    await http.post("/v1/chat/completions", json={"model": "tiny", "messages": [*orders, question]})
    assert len({job.tokens for job in service.backend.jobs}) == 1
    assert len(service.backend.jobs) == 3


async def test_input_is_counted_exactly(service: Service, sdk: openai.AsyncOpenAI) -> None:
    counted = await sdk.responses.input_tokens.count(**ASK, instructions="Be brief.")
    answer = await sdk.responses.create(**ASK, instructions="Be brief.")
    assert answer.usage is not None
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", answer.usage.input_tokens)
    assert len(service.backend.jobs) == 1


async def test_a_stream_can_be_continued_as_soon_as_it_has_ended(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "Two.")
    previous = None
    for turn in range(1, 4):
        stream = await sdk.responses.create(**ASK, previous_response_id=previous, stream=True)
        async for event in stream:
            if event.type == "response.completed":
                previous = event.response.id
                break
        await stream.close()
        assert len(service.backend.jobs) == turn
    prompts = [job.tokens for job in service.backend.jobs]
    assert len(prompts[0]) < len(prompts[1]) < len(prompts[2])


async def test_only_what_was_remembered_for_this_tenant_can_be_continued(served: ServedModel) -> None:
    tenants = Tenants({"k1": Tenant("one", "a"), "k2": Tenant("two", "b")})
    async with (
        serving({"tiny": served}, tenants) as service,
        client(service, "k1") as one,
        client(service, "k2") as two,
    ):
        kept = await one.responses.create(**ASK)
        declined = await one.responses.create(**ASK, store=False)
        await one.responses.create(**ASK, previous_response_id=kept.id)
        for sdk, response in ((two, kept.id), (one, declined.id), (one, "resp_none")):
            with pytest.raises(openai.BadRequestError, match="send the whole input") as caught:
                await sdk.responses.create(**ASK, previous_response_id=response)
            assert caught.value.code == "previous_response_not_found"


async def test_errors_have_the_codes_that_agents_look_for(service: Service, sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await sdk.responses.create(model="other", input="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="prompt is too long") as too_long:
        await sdk.responses.create(model="tiny", input="word and number 12 " * 3000)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="background: not supported"):
        await sdk.responses.create(**ASK, background=True)
    service.backend.routable = False
    with pytest.raises(openai.InternalServerError) as full:
        await sdk.responses.create(**ASK)
    assert (full.value.status_code, full.value.response.headers["retry-after"]) == (503, "1")


async def test_a_failure_in_the_middle_ends_the_stream_as_failed(service: Service, sdk: openai.AsyncOpenAI) -> None:
    service.engine.error = ReplicaDied("secret")
    stream = await sdk.responses.create(**ASK, stream=True)
    *_, error, failed = [event async for event in stream]
    assert error.type == "error"
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert failed.response.error.code == "server_error"
    assert "secret" not in failed.to_json()
    assert (await service.ended()).outcome == "failed_replica"


async def test_a_long_prefill_is_kept_alive_by_comments(served: ServedModel) -> None:
    async with serving({"tiny": served}, Tenants(), pacing=Pacing(ping_interval_s=0.02)) as service:
        service.engine.gate.clear()
        lines: list[str] = []
        async with (
            httpx.AsyncClient(timeout=30) as http,
            http.stream("POST", f"{service.url}/v1/responses", json={**ASK, "stream": True}) as response,
        ):
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count(": ping") == 2:
                    service.engine.gate.set()
    assert lines[0] == "event: response.created"
    assert "event: response.completed" in lines[-4:]


async def test_hints_travel_to_the_backend_and_the_report(service: Service, http: httpx.AsyncClient) -> None:
    tools = [{"type": "web_search", "external_web_access": False}]
    body = {**ASK, "prompt_cache_key": "thread", "client_metadata": {"turn": "1"}, "tools": tools, "novel": 1}
    assert (await http.post("/v1/responses", json=body)).status_code == 200
    assert service.backend.jobs[0].session == "thread"
    report = await service.ended()
    assert (report.api, report.ignored) == ("responses", ("tools[] of type web_search", "novel"))
