"""Anthropic's own SDK against the ingress."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import pytest

from cluster.api import body as body_fields
from cluster.exchange import Pacing
from cluster.tenants import Tenants
from router.errors import ReplicaDied
from router.limits import INLINE_BODY_BYTES, MAX_CHARS_PER_TOKEN, MAX_HINT_CHARS
from tests.cluster.support import REPLICA, serving, spoken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from cluster.models.served import ServedModel
    from tests.cluster.support import Service

pytestmark = pytest.mark.anyio
HEADER = "x-anthropic-billing-header: cc_version=2.1.332.0ab; cc_entrypoint=cli;"
USER: Any = {"role": "user", "content": "Which sensors failed last night?"}


def client(service: Service, key: str = "any") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=service.url, api_key=key, max_retries=0)


@pytest.fixture
async def sdk(service: Service) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with client(service) as opened:
        yield opened


async def record(stream: AsyncIterator[Any], events: list[str]) -> None:
    async for event in stream:
        events.append(event.type)


async def test_an_answer_has_text_reason_usage_and_a_request_id(
    service: Service, sdk: anthropic.AsyncAnthropic, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "Two: the wind vane, né 風.")
    service.engine.cached_tokens = 5
    message = await sdk.messages.create(model="tiny", max_tokens=50, system="Be brief.", messages=[USER])
    assert message.content[0].text == "Two: the wind vane, né 風."  # type: ignore[union-attr]
    assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")
    prompt_tokens = len(service.backend.jobs[0].tokens) // 4
    assert message.usage.input_tokens == prompt_tokens - 5
    assert message.usage.cache_read_input_tokens == 5
    assert message.usage.cache_creation_input_tokens == 0
    assert message.usage.output_tokens == len(service.engine.script)
    assert message._request_id == service.backend.jobs[0].request_id
    assert message._request_id is not None
    assert message._request_id.startswith("req_")
    assert len(message._request_id) <= len("req_") + 36


async def test_the_answer_of_one_turn_extends_into_the_next_prompt(
    service: Service, sdk: anthropic.AsyncAnthropic, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "The vane.")
    first = await sdk.messages.create(model="tiny", max_tokens=50, system="Be brief.", messages=[USER])
    said: Any = {"role": "assistant", "content": first.content}
    await sdk.messages.create(
        model="tiny", max_tokens=50, system="Be brief.", messages=[USER, said, {"role": "user", "content": "Why?"}]
    )
    before, after = (job.tokens for job in service.backend.jobs)
    assert after.startswith(before + b"".join(service.engine.script))


async def test_the_streaming_helper_sees_text_and_the_true_usage(
    service: Service, sdk: anthropic.AsyncAnthropic, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "Two of them, 風.")
    service.engine.cached_tokens = 7
    async with sdk.messages.stream(model="tiny", max_tokens=50, messages=[USER]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_message()
    assert final.content[0].text == "Two of them, 風."  # type: ignore[union-attr]
    assert (final.stop_reason, final.usage.cache_read_input_tokens) == ("end_turn", 7)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start: Any = events[0]
    prompt_tokens = len(service.backend.jobs[0].tokens) // 4
    assert (start.message.usage.input_tokens, start.message.usage.cache_read_input_tokens) == (prompt_tokens - 7, 7)


async def test_the_wire_form_of_a_stream_is_the_protocols(service: Service) -> None:
    body = {"model": "tiny", "max_tokens": 50, "messages": [USER], "stream": True}
    async with httpx.AsyncClient() as http:
        response = await http.post(f"{service.url}/v1/messages?beta=true", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "content-encoding" not in response.headers
    assert response.headers["x-kvist-replica"] == REPLICA
    assert response.headers["x-kvist-predicted-cached-tokens"] == "8"
    stages = [part.split(";")[0] for part in response.headers["server-timing"].split(", ")]
    assert stages == ["parse", "canonical", "template", "tokenize", "hash", "route", "ttft"]
    assert "[DONE]" not in response.text
    for event in response.text.strip().split("\n\n"):
        name, data = event.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


async def test_a_stop_sequence_ends_the_answer_and_the_generation(
    service: Service, sdk: anthropic.AsyncAnthropic, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "one two three")
    service.engine.endless = True
    message = await sdk.messages.create(model="tiny", max_tokens=4000, messages=[USER], stop_sequences=["wo th", "zzz"])
    assert message.content[0].text == "one t"  # type: ignore[union-attr]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "wo th")
    async with asyncio.timeout(20):
        await service.engine.aborted.wait()
    assert (await service.ended()).outcome == "completed"


async def test_max_tokens_ends_the_answer(service: Service, sdk: anthropic.AsyncAnthropic, served: ServedModel) -> None:
    service.engine.script = spoken(served, "one two three four")
    message = await sdk.messages.create(model="tiny", max_tokens=2, messages=[USER])
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 2)


async def test_max_tokens_is_cut_to_what_the_context_leaves(
    service: Service, sdk: anthropic.AsyncAnthropic, served: ServedModel
) -> None:
    await sdk.messages.create(model="tiny", max_tokens=128_000, messages=[USER], timeout=60)
    job = service.backend.jobs[0]
    assert job.sampling.max_tokens == served.max_model_len - len(job.tokens) // 4


async def test_a_prompt_longer_than_the_context_is_refused_in_the_words_clients_parse(
    service: Service, sdk: anthropic.AsyncAnthropic
) -> None:
    long: Any = {"role": "user", "content": "word and number 12 " * 3000}
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 4095 maximum"):
        await sdk.messages.create(model="tiny", max_tokens=5, messages=[long])
    assert service.backend.jobs == []
    assert (await service.ended()).outcome == "client_error"


async def test_text_that_cannot_fit_is_refused_before_it_is_rendered(
    service: Service, served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are not counted, so it is not told as a prompt of so many tokens."""
    monkeypatch.setattr(served, "prompt", None)
    most = served.max_model_len * MAX_CHARS_PER_TOKEN
    ask = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "a" * (most + 1)}]}
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as http:
        for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"):
            response = await http.post(path, json=ask)
            assert response.status_code == 413
            assert response.json()["error"]["message"].startswith(f"{most + 1} characters of text cannot fit")


async def test_what_rules_remove_does_not_count_against_the_window(service: Service, served: ServedModel) -> None:
    flood = f"{HEADER}\n" * (served.max_model_len * MAX_CHARS_PER_TOKEN // len(HEADER) + 1)
    ask = {"model": "tiny", "max_tokens": 5, "messages": [USER]}
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as http:
        for system in ("Be brief.", f"{flood}Be brief."):
            assert (await http.post("/v1/messages", json={**ask, "system": system})).status_code == 200
    plain, flooded = service.backend.jobs
    assert plain.tokens == flooded.tokens


@pytest.mark.parametrize(("padding", "on_the_loop"), [(0, True), (INLINE_BODY_BYTES, False)])
async def test_large_bodies_are_read_off_the_loop(
    service: Service, served: ServedModel, monkeypatch: pytest.MonkeyPatch, padding: int, on_the_loop: bool
) -> None:
    threads: list[threading.Thread] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            threads.append(threading.current_thread())
            return function(*args)

        return noting

    monkeypatch.setattr(body_fields, "read_fields", noted(body_fields.read_fields))
    monkeypatch.setattr(served, "canonical", noted(served.canonical))
    ask = {"model": "tiny", "max_tokens": 5, "messages": [USER], "novel": "x" * padding}
    async with httpx.AsyncClient() as http:
        assert (await http.post(f"{service.url}/v1/messages", json=ask)).status_code == 200
        malformed = json.dumps({**ask, "max_tokens": "many"})
        assert (await http.post(f"{service.url}/v1/messages", content=malformed)).status_code == 400
    outlined, read, ruled = True, on_the_loop, on_the_loop  # an outline is cheap, and decides what must be read at all
    assert [thread is threading.current_thread() for thread in threads] == [outlined, read, ruled, outlined, read]


async def test_a_reported_error_is_bounded(service: Service) -> None:
    service.engine.script, service.engine.error = [], RuntimeError("m" * 9_999)
    async with httpx.AsyncClient() as http:
        await http.post(f"{service.url}/v1/messages", json={"model": "tiny", "max_tokens": 5, "messages": [USER]})
    error = (await service.ended()).error
    assert len(error) == MAX_HINT_CHARS
    assert error.startswith("RuntimeError: mmm")


async def test_an_error_without_words_is_reported_by_its_kind(service: Service) -> None:
    service.engine.script, service.engine.error = [], RuntimeError()
    async with httpx.AsyncClient() as http:
        await http.post(f"{service.url}/v1/messages", json={"model": "tiny", "max_tokens": 5, "messages": [USER]})
    assert (await service.ended()).error == "RuntimeError"


async def test_an_empty_answer_has_no_block(service: Service, sdk: anthropic.AsyncAnthropic) -> None:
    service.engine.script = []
    message = await sdk.messages.create(model="tiny", max_tokens=5, messages=[USER])
    assert (message.content, message.stop_reason) == ([], "end_turn")


async def test_count_tokens_is_exact_and_equal_with_and_without_the_attribution_line(
    service: Service, sdk: anthropic.AsyncAnthropic
) -> None:
    plain = await sdk.messages.count_tokens(model="tiny", system="Be brief.", messages=[USER])
    headed = await sdk.messages.count_tokens(
        model="tiny",
        system=[{"type": "text", "text": HEADER}, {"type": "text", "text": "Be brief."}],
        messages=[USER],
    )
    await sdk.messages.create(model="tiny", max_tokens=5, system=f"{HEADER}\nBe brief.", messages=[USER])
    assert plain.input_tokens == headed.input_tokens == len(service.backend.jobs[0].tokens) // 4
    headed_report = await service.ended(2)
    assert [change.before for change in headed_report.changes] == [HEADER]
    assert (headed_report.outcome, headed_report.api) == ("completed", "count_tokens")


async def test_a_last_assistant_message_is_continued(
    service: Service, sdk: anthropic.AsyncAnthropic, served: ServedModel
) -> None:
    opened: Any = {"role": "assistant", "content": "The first is"}
    await sdk.messages.create(model="tiny", max_tokens=5, messages=[USER, opened])
    (continued,) = service.backend.jobs
    assert continued.tokens.endswith(b"".join(spoken(served, "The first is")))


async def test_unknown_models_are_not_found(service: Service, sdk: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        await sdk.messages.create(model="other", max_tokens=5, messages=[USER])
    body: Any = caught.value.body
    assert body["error"]["type"] == "not_found_error"
    assert body["request_id"] == caught.value.request_id


async def test_a_full_cluster_is_overloaded_and_says_when_to_come_back(
    service: Service, sdk: anthropic.AsyncAnthropic
) -> None:
    service.backend.routable = False
    with pytest.raises(anthropic.APIStatusError) as caught:
        await sdk.messages.create(model="tiny", max_tokens=5, messages=[USER])
    body: Any = caught.value.body
    assert (caught.value.status_code, body["error"]["type"]) == (529, "overloaded_error")
    assert caught.value.response.headers["retry-after"] == "1"
    assert "secret" not in caught.value.response.text
    assert (await service.ended()).outcome == "rejected_capacity"


@pytest.mark.parametrize(
    ("error", "outcome", "words"),
    [
        (ReplicaDied("secret"), "failed_replica", "the replica failed, try again"),
        (RuntimeError("secret"), "failed_internal", "internal error"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_token_is_a_status_without_its_own_words(
    service: Service, sdk: anthropic.AsyncAnthropic, error: Exception, outcome: str, words: str, stream: bool
) -> None:
    service.engine.script, service.engine.error = [], error
    with pytest.raises(anthropic.InternalServerError) as caught:
        await sdk.messages.create(model="tiny", max_tokens=5, messages=[USER], stream=stream)
    body: Any = caught.value.body
    assert body["error"] == {"type": "api_error", "message": words}
    report = await service.ended()
    assert (report.outcome, report.error) == (outcome, f"{type(error).__name__}: secret")


async def test_a_failure_in_the_middle_closes_the_block_and_sends_an_error_event(
    service: Service, sdk: anthropic.AsyncAnthropic
) -> None:
    service.engine.error = ReplicaDied("secret")
    events: list[str] = []
    stream = await sdk.messages.create(model="tiny", max_tokens=5, messages=[USER], stream=True)
    with pytest.raises(anthropic.APIStatusError, match="the replica failed"):
        await record(stream, events)
    assert events[-1] == "content_block_stop"
    report = await service.ended()
    assert (report.outcome, report.error) == ("failed_replica", "ReplicaDied: secret")


@pytest.mark.parametrize("ending", [None, "abort", "error"])
async def test_a_generation_that_ends_without_a_reason_is_a_failure(
    service: Service, sdk: anthropic.AsyncAnthropic, ending: Any
) -> None:
    service.engine.ending = ending
    with pytest.raises(anthropic.InternalServerError):
        await sdk.messages.create(model="tiny", max_tokens=5, messages=[USER])
    assert (await service.ended()).outcome == "failed_replica"


async def test_every_response_says_where_its_time_went(service: Service) -> None:
    """As far as it came: an answer, a count, an error of a body, an unknown model, a stranger's path, a list."""
    ask = {"model": "tiny", "max_tokens": 5, "messages": [USER]}
    cases: list[tuple[str, dict[str, Any] | None, list[str]]] = [
        ("/v1/messages", ask, ["parse", "canonical", "template", "tokenize", "hash", "route", "ttft"]),
        ("/v1/messages/count_tokens", ask, ["parse", "canonical", "template", "tokenize"]),
        ("/v1/messages", {**ask, "max_tokens": "many"}, ["total"]),
        ("/v1/messages", {**ask, "model": "other"}, ["parse"]),
        ("/v1/nowhere", ask, ["total"]),
        ("/v1/models", None, ["total"]),
    ]
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as http:
        for path, body, stages in cases:
            response = await (http.get(path) if body is None else http.post(path, json=body))
            timed = dict(part.split(";dur=") for part in response.headers["server-timing"].split(", "))
            assert list(timed) == stages, path
            assert all(float(duration) >= 0 for duration in timed.values())


async def test_a_long_prefill_gets_its_start_with_the_prediction_and_pings(served: ServedModel) -> None:
    body = {"model": "tiny", "max_tokens": 50, "messages": [USER], "stream": True}
    async with serving({"tiny": served}, Tenants(), pacing=Pacing(ping_interval_s=0.02)) as service:
        service.engine.gate.clear()
        service.engine.cached_tokens = 4
        seen: list[dict[str, Any]] = []
        async with (
            httpx.AsyncClient(timeout=30) as http,
            http.stream("POST", f"{service.url}/v1/messages", json=body) as response,
        ):
            assert "ttft" not in response.headers["server-timing"]
            assert response.headers["x-kvist-replica"] == REPLICA
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
                if len(seen) == 3:
                    service.engine.gate.set()
    assert [event["type"] for event in seen[:3]] == ["message_start", "ping", "ping"]
    assert seen[0]["message"]["usage"]["cache_read_input_tokens"] == 8
    (last,) = [event for event in seen if event["type"] == "message_delta"]
    assert last["usage"]["cache_read_input_tokens"] == 4
    assert seen[-1]["type"] == "message_stop"


async def test_malformed_bodies_are_told_what_is_wrong(service: Service) -> None:
    async with httpx.AsyncClient() as http:
        response = await http.post(f"{service.url}/v1/messages", content=b"{", headers={"content-type": "text/plain"})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert response.headers["request-id"] == response.json()["request_id"]


async def test_keys_are_asked_for_in_either_header(served: ServedModel) -> None:
    async with serving({"tiny": served}, Tenants.sharing_default(["k1", "k2"])) as service:
        ask: Any = {"model": "tiny", "max_tokens": 5, "messages": [USER]}
        async with client(service, "k1") as sdk:
            await sdk.messages.create(**ask)
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{service.url}/v1/messages", json=ask, headers={"x-api-key": "k2"})
        assert answer.status_code == 200
        async with client(service, "k3") as sdk:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await sdk.messages.create(**ask)
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error"


async def test_models_are_listed_for_this_sdk(service: Service, sdk: anthropic.AsyncAnthropic) -> None:
    models = [model async for model in sdk.models.list(limit=1000)]
    assert [(model.id, model.display_name, model.type) for model in models] == [("tiny", "tiny", "model")]
    assert (await sdk.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(anthropic.NotFoundError):
        await sdk.models.retrieve("other")
