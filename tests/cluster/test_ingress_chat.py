"""OpenAI's own SDK against the ingress, and what belongs to no protocol."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from cluster.exchange import Pacing
from cluster.tenants import Tenants
from router.errors import ReplicaDied
from tests.cluster.support import serving, spoken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cluster.models.served import ServedModel
    from tests.cluster.support import Service

pytestmark = pytest.mark.anyio
USER: Any = {"role": "user", "content": "Which sensors failed last night?"}
ASK: Any = {"model": "tiny", "messages": [USER]}


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


async def test_an_answer_has_text_reason_and_usage(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "The vane, né 風.")
    service.engine.cached_tokens = 6
    answer = await sdk.chat.completions.create(**ASK)
    choice, usage = answer.choices[0], answer.usage
    assert (choice.message.content, choice.finish_reason) == ("The vane, né 風.", "stop")
    assert usage is not None
    assert usage.prompt_tokens == len(service.backend.jobs[0].tokens) // 4
    assert usage.completion_tokens == len(service.engine.script)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 6
    assert answer._request_id is None or answer._request_id.startswith("req_")


async def test_without_a_limit_the_answer_may_fill_the_context(service: Service, sdk: openai.AsyncOpenAI) -> None:
    await sdk.chat.completions.create(**ASK, seed=7, temperature=0, top_p=0.5)
    (job,) = service.backend.jobs
    assert job.sampling.max_tokens == 4096 - len(job.tokens) // 4
    assert (job.sampling.seed, job.sampling.temperature, job.sampling.top_p) == (7, 0, 0.5)


async def test_a_stream_ends_with_its_reason_its_usage_and_done(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "One. Two.")
    stream = await sdk.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "One. Two."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_usage_is_streamed_only_when_asked_for(service: Service, http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/chat/completions", json={**ASK, "stream": True})
    events = response.text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(event.removeprefix("data: ")) for event in events[:-1])


async def test_length_and_stop_strings_end_answers(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "one two three")
    cut = await sdk.chat.completions.create(**ASK, max_tokens=9, max_completion_tokens=1)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 1
    stopped = await sdk.chat.completions.create(**ASK, stop=" two")
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("one", "stop")


async def test_several_choices_are_several_answers_to_one_prompt(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    """The prompt counts once, what was generated counts for each."""
    service.engine.script = spoken(served, "One. Two.")
    answer = await sdk.chat.completions.create(**ASK, n=3)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(i, "One. Two.") for i in range(3)]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(service.backend.jobs[0].tokens) // 4
    assert answer.usage.completion_tokens == 3 * len(service.engine.script)
    assert len(service.backend.jobs) == 3


async def test_streamed_choices_say_which_they_are(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, "One. Two.")
    said = {0: "", 1: ""}
    reasons: list[tuple[int, str]] = []
    async for chunk in await sdk.chat.completions.create(**ASK, n=2, stream=True):
        (choice,) = chunk.choices
        said[choice.index] += choice.delta.content or ""
        reasons += [(choice.index, choice.finish_reason)] if choice.finish_reason else []
    assert said == {0: "One. Two.", 1: "One. Two."}
    assert sorted(reasons) == [(0, "stop"), (1, "stop")]


async def test_every_token_comes_with_its_log_probability(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    """Whole and streamed alike."""
    service.engine.script = spoken(served, "né 風.")
    asked: Any = {**ASK, "logprobs": True, "top_logprobs": 2}
    whole = (await sdk.chat.completions.create(**asked)).choices[0].logprobs
    stream = await sdk.chat.completions.create(**asked, stream=True)
    streamed = [chunk.choices[0].logprobs async for chunk in stream]
    assert whole is not None
    assert whole.content is not None
    assert [token for part in streamed if part for token in part.content or ()] == whole.content
    assert bytes(byte for token in whole.content for byte in token.bytes or ()).decode() == "né 風."
    assert {(token.logprob, len(token.top_logprobs)) for token in whole.content} == {(-0.25, 2)}
    assert [job.sampling.logprobs for job in service.backend.jobs] == [2, 2]


async def test_wishes_to_the_sampler_reach_the_engine(service: Service, sdk: openai.AsyncOpenAI) -> None:
    await sdk.chat.completions.create(
        **ASK, presence_penalty=1, frequency_penalty=-1, logit_bias={"7": -100}, extra_body={"min_p": 0.1, "top_k": 3}
    )
    sampling = service.backend.jobs[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.min_p, sampling.top_k) == (1, -1, 0.1, 3)
    assert sampling.logit_bias == ((7, -100.0),)


async def test_a_bias_of_a_token_that_the_model_has_not_is_refused(service: Service, sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="logit_bias: token 2147483647 is not one of the model's"):
        await sdk.chat.completions.create(**ASK, logit_bias={str(2**31 - 1): 1})
    assert service.backend.jobs == []


async def test_both_protocols_give_the_same_prompt(service: Service, http: httpx.AsyncClient) -> None:
    system = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}]
    await http.post("/v1/chat/completions", json={**ASK, "messages": [*system, USER]})
    await http.post("/v1/messages", json={**ASK, "max_tokens": 5, "system": "Be brief.\nBe kind."})
    chat, messages = service.backend.jobs
    assert chat.tokens == messages.tokens


async def test_errors_have_this_protocols_shape(service: Service, sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await sdk.chat.completions.create(model="other", messages=[USER])
    assert unknown.value.code == "model_not_found"
    long: Any = {"role": "user", "content": "word and number 12 " * 3000}
    with pytest.raises(openai.BadRequestError, match="prompt is too long") as too_long:
        await sdk.chat.completions.create(model="tiny", messages=[long])
    assert too_long.value.code == "context_length_exceeded"
    service.backend.routable = False
    with pytest.raises(openai.InternalServerError) as full:
        await sdk.chat.completions.create(**ASK)
    assert (full.value.status_code, full.value.response.headers["retry-after"]) == (503, "1")


async def test_a_failure_in_the_middle_is_an_error_chunk(service: Service, sdk: openai.AsyncOpenAI) -> None:
    service.engine.error = ReplicaDied("secret")
    stream = await sdk.chat.completions.create(**ASK, stream=True)
    with pytest.raises(openai.APIError, match="the replica failed"):
        [chunk async for chunk in stream]


async def test_wrong_keys_are_refused(served: ServedModel) -> None:
    async with serving({"tiny": served}, Tenants.sharing_default(["k1"])) as service:
        async with client(service, "k2") as sdk:
            with pytest.raises(openai.AuthenticationError) as caught:
                await sdk.chat.completions.create(**ASK)
            assert caught.value.code == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError):
                await sdk.models.list()
        async with client(service, "k1") as sdk:
            assert [model.id async for model in sdk.models.list()] == ["tiny"]


async def test_models_are_listed_for_this_sdk(sdk: openai.AsyncOpenAI) -> None:
    assert (await sdk.models.retrieve("tiny")).object == "model"
    with pytest.raises(openai.NotFoundError):
        await sdk.models.retrieve("org/other")


async def test_a_long_prefill_is_kept_alive_by_comments(served: ServedModel) -> None:
    async with serving({"tiny": served}, Tenants(), pacing=Pacing(ping_interval_s=0.02)) as service:
        service.engine.gate.clear()
        lines: list[str] = []
        async with (
            httpx.AsyncClient(timeout=30) as http,
            http.stream("POST", f"{service.url}/v1/chat/completions", json={**ASK, "stream": True}) as response,
        ):
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count(": ping") == 2:
                    service.engine.gate.set()
    assert lines[0].startswith("data: ")
    assert lines[-2] == "data: [DONE]"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/", "/api/hello"])
async def test_probes_of_clients_find_somebody_at_home(http: httpx.AsyncClient, method: str, path: str) -> None:
    response = await http.request(method, path)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["request-id"].startswith("req_")


async def test_health_says_why_there_is_none(service: Service, http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).status_code == 200
    service.backend.routable = False
    response = await http.get("/healthz")
    assert response.status_code == 503
    body = response.json()
    assert (body["status"], body["detail"]) == ("unavailable", service.backend.health().detail)


async def test_what_does_not_exist_is_said_in_the_callers_shape(http: httpx.AsyncClient) -> None:
    wrong_method = await http.get("/v1/messages")
    assert (wrong_method.status_code, wrong_method.json()["error"]["type"]) == (405, "invalid_request_error")
    wrong_path = await http.get("/v1/nothing")
    assert (wrong_path.status_code, wrong_path.json()["error"]["code"]) == (404, "not_found")
    assert wrong_path.headers["request-id"].startswith("req_")


async def test_a_wrong_method_is_told_the_right_ones(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/messages")).headers["allow"] == "POST"
    assert (await http.get("/v1/chat/completions")).headers["allow"] == "POST"
    for path in ("/v1/models", "/healthz"):
        refused = await http.post(path)
        assert (refused.status_code, set(refused.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/healthz", "/kvist/status"])
async def test_what_can_be_got_can_be_asked_for_its_head(http: httpx.AsyncClient, path: str) -> None:
    got, head = await http.get(path), await http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]


async def test_a_trailing_slash_is_no_redirect(http: httpx.AsyncClient) -> None:
    """Clients would repeat a redirected POST as a GET, or not at all."""
    messages = await http.post("/v1/messages/", json=ASK)
    assert (messages.status_code, messages.json()["error"]["type"]) == (404, "not_found_error")
    chat = await http.post("/v1/chat/completions/", json=ASK)
    assert (chat.status_code, chat.json()["error"]["code"]) == (404, "not_found")


async def test_a_stale_key_beside_the_right_one_does_no_harm(served: ServedModel) -> None:
    async with serving({"tiny": served}, Tenants.sharing_default(["k1"])) as service, httpx.AsyncClient() as http:
        both = {"x-api-key": "stale", "authorization": "Bearer k1"}
        for path in ("/v1/models", "/kvist/status"):
            assert (await http.get(f"{service.url}{path}", headers=both)).status_code == 200
        answer = await http.post(f"{service.url}/v1/chat/completions", json=ASK, headers=both)
    assert answer.status_code == 200


async def test_hints_travel_to_the_backend_and_the_report(service: Service, http: httpx.AsyncClient) -> None:
    body = {**ASK, "prompt_cache_key": "from-body", "nobody_knows": 1}
    await http.post("/v1/chat/completions", json=body, headers={"user-agent": "agent/1"})
    await http.post("/v1/chat/completions", json=body, headers={"X-Claude-Code-Session-Id": "from-header"})
    assert [job.session for job in service.backend.jobs] == ["from-body", "from-header"]
    report = await service.ended(2)
    assert (report.ignored, report.session, service.reports[0].client) == (("nobody_knows",), "from-header", "agent/1")
    assert report.prompt_tokens == len(service.backend.jobs[1].tokens) // 4
    assert report.ttft_s is not None
    assert report.duration_s >= report.ttft_s


async def test_a_client_that_leaves_during_prefill_aborts_the_generation(service: Service) -> None:
    service.engine.gate.clear()
    for stream in (True, False):
        service.engine.begun.clear()
        service.engine.aborted.clear()
        async with httpx.AsyncClient(timeout=30) as http:
            asking = asyncio.create_task(
                http.post(f"{service.url}/v1/chat/completions", json={**ASK, "stream": stream})
            )
            await service.engine.begun.wait()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(20):
            await service.engine.aborted.wait()
    assert [(await service.ended(n)).outcome for n in (1, 2)] == ["cancelled", "cancelled"]


async def test_a_client_that_leaves_during_decode_aborts_the_generation(service: Service) -> None:
    service.engine.endless = True
    async with (
        httpx.AsyncClient(timeout=30) as http,
        http.stream("POST", f"{service.url}/v1/chat/completions", json={**ASK, "stream": True}) as response,
    ):
        await anext(response.aiter_lines())
    async with asyncio.timeout(20):
        await service.engine.aborted.wait()
    assert (await service.ended()).outcome == "cancelled"


async def test_a_client_that_leaves_while_it_sends_is_cancelled(service: Service) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    assert (await service.ended()).outcome == "cancelled"
    assert service.backend.jobs == []


async def test_a_body_beyond_the_limit_is_refused_while_it_is_read(service: Service, http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/messages", content=b" " * (32 * 2**20 + 1))
    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")
    assert (await service.ended()).outcome == "client_error"


async def test_every_request_ends_in_one_outcome(service: Service, http: httpx.AsyncClient) -> None:
    await asyncio.gather(*(http.post("/v1/chat/completions", json=ASK) for _ in range(20)))
    await asyncio.gather(*(http.post("/v1/messages", json=ASK) for _ in range(20)))
    await service.ended(40)
    outcomes = [report.outcome for report in service.reports]
    assert (outcomes.count("completed"), outcomes.count("client_error"), len(outcomes)) == (20, 20, 40)
    assert len({report.request_id for report in service.reports}) == 40
