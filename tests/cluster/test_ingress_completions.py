"""OpenAI's own SDK against `/v1/completions`: prompts arrive at the engine as they were given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from tokenizers import processors

from cluster.models.tokenizer import HfTokenizer
from router.limits import MAX_CHARS_PER_TOKEN
from tests.cluster.conftest import CONTEXT_TOKENS
from tests.cluster.support import packed, spoken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.models.served import ServedModel
    from tests.cluster.support import Service

pytestmark = pytest.mark.anyio
ASK: Any = {"model": "tiny", "prompt": "Once upon"}


@pytest.fixture
async def sdk(service: Service) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


async def test_a_text_is_continued(service: Service, sdk: openai.AsyncOpenAI, served: ServedModel) -> None:
    service.engine.script = spoken(served, " a time, né 風.")
    service.engine.cached_tokens = 1
    answer = await sdk.completions.create(**ASK)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (" a time, né 風.", "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(service.backend.jobs[0].tokens) // 4
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert service.backend.jobs[0].sampling.max_tokens == 16


@pytest.mark.parametrize(
    "prompt",
    ["x-anthropic-billing-header: cch=1;\nGo", "  \n", "<|im_start|>user\nHi<|im_end|>", "<system-reminder>a"],
)
async def test_a_prompt_reaches_the_engine_unaltered(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel, prompt: str
) -> None:
    """No rule, no template: what the tokens say is what was given."""
    await sdk.completions.create(model="tiny", prompt=prompt)
    tokens = served._tokenizer.encode_batch([prompt])[0]
    assert service.backend.jobs[0].tokens == tokens
    assert (await service.ended()).changes == ()


async def test_a_text_begins_as_the_models_texts_do_and_only_once(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A begin token is put before a raw text, since no template has; not before tokens, not before another one."""
    begin = served._tokenizer.encode_batch(["<|im_start|>"])[0]
    assert len(begin) == 4
    monkeypatch.setattr(HfTokenizer, "opening", begin)
    await sdk.completions.create(model="tiny", prompt=["Once", "<|im_start|>Once"])
    await sdk.completions.create(model="tiny", prompt=[5])
    once, twice, tokens = [job.tokens for job in service.backend.jobs]
    assert once == twice == begin + served._tokenizer.encode_batch(["Once"])[0]
    assert tokens == packed([5])


async def test_tokens_are_continued_as_they_are(service: Service, sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model="tiny", prompt=[[5, 6, 7], [8]])
    assert [job.tokens for job in service.backend.jobs] == [packed([5, 6, 7]), packed([8])]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4


async def test_several_prompts_have_their_choices_in_order(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, " and on")
    answer = await sdk.completions.create(model="tiny", prompt=["Once", "Twice"], n=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(i, " and on") for i in range(4)]
    jobs = [job.tokens for job in service.backend.jobs]
    assert jobs[0] == jobs[1] != jobs[2] == jobs[3]


async def test_a_stream_says_the_text_its_reason_its_usage_and_done(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, " a time.")
    stream = await sdk.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    *chunks, last = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == " a time."
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None
    async with httpx.AsyncClient(base_url=service.url) as http:
        raw = (await http.post("/v1/completions", json={**ASK, "stream": True})).text.strip().split("\n\n")
    assert raw[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(event.removeprefix("data: ")) for event in raw[:-1])


async def test_every_token_comes_with_its_log_probability(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    service.engine.script = spoken(served, " a time.")
    answer = (await sdk.completions.create(**ASK, logprobs=2)).choices[0]
    logprobs = answer.logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or ()) == answer.text
    assert set(logprobs.token_logprobs or ()) == {-0.25}
    places = zip(logprobs.text_offset or (), logprobs.tokens or (), strict=True)
    assert all(answer.text[at:].startswith(token) for at, token in places)
    assert all(len(top) == 2 for top in logprobs.top_logprobs or ())


async def test_a_request_for_no_tokens_only_fills_the_cache(service: Service, sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(**ASK, max_tokens=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


async def test_tokens_that_the_model_has_not_are_refused(
    service: Service, sdk: openai.AsyncOpenAI, served: ServedModel
) -> None:
    size = served._tokenizer.size
    await sdk.completions.create(model="tiny", prompt=[size - 1])
    with pytest.raises(openai.BadRequestError, match=f"prompt: token {size} is not one of the model's {size}"):
        await sdk.completions.create(model="tiny", prompt=[1, size])
    assert len(service.backend.jobs) == 1


async def test_a_prompt_beyond_the_window_is_too_long_as_text_and_as_tokens(
    service: Service, sdk: openai.AsyncOpenAI
) -> None:
    for prompt in ([5] * CONTEXT_TOKENS, "word and number 12 " * 3_000):
        with pytest.raises(openai.BadRequestError, match="prompt is too long") as caught:
            await sdk.completions.create(model="tiny", prompt=prompt)
        assert caught.value.code == "context_length_exceeded"
    assert service.backend.jobs == []


async def test_max_chars_per_token_stops_prompts_that_cannot_fit_before_they_are_encoded(
    service: Service, sdk: openai.AsyncOpenAI
) -> None:
    """MAX_CHARS_PER_TOKEN bounds the longest prompt; several short ones may be longer together."""
    longest = CONTEXT_TOKENS * MAX_CHARS_PER_TOKEN
    with pytest.raises(openai.APIStatusError, match="cannot fit the context window") as caught:
        await sdk.completions.create(model="tiny", prompt=["a", " " * (longest + 1)])
    assert caught.value.status_code == 413
    await sdk.completions.create(model="tiny", prompt=["ab " * 1_000] * 90)
    assert len(service.backend.jobs) == 90


async def test_errors_have_this_protocols_shape(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await sdk.completions.create(model="other", prompt="a")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="echo: not supported yet"):
        await sdk.completions.create(**ASK, echo=True)


def test_what_a_tokenizer_puts_before_every_text_is_known(tiny_model: Path, tmp_path: Path) -> None:
    """A begin token, where a model has one: templates write it themselves, a raw prompt has none."""
    assert HfTokenizer(tiny_model).opening == b""
    spec = json.loads((tiny_model / "tokenizer.json").read_text())
    begin = processors.TemplateProcessing(single="[B] $A [B]", special_tokens=[("[B]", 5)])
    spec["post_processor"] = json.loads(begin.__getstate__())
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    assert HfTokenizer(tmp_path).opening == packed([5])
