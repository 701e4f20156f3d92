"""What every engine promises, checked alike on the simulated one and on real vLLM."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer

from router.errors import InvalidRequest
from tests.conformance.engines import (
    BLOCK_SIZE,
    BUDGET_TOKENS,
    MAX_MODEL_LEN,
    MODEL,
    POOL_BLOCKS,
    Bench,
    packed,
    unpacked,
)
from workers.engine import EngineInfo, Generation, Sampling, Structured
from workers.vllm_engine import VllmEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from workers.engine import TokenDelta


def test_facts_are_known_once_started(bench: Bench) -> None:
    """A router must not assume a block size or a capacity, nor how an engine shares its steps."""
    assert bench.engine.info == EngineInfo(
        model=MODEL,
        block_size=BLOCK_SIZE,
        pool_blocks=POOL_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
        step_tokens=BUDGET_TOKENS,
        share_tokens=BUDGET_TOKENS // 2 if isinstance(bench.engine, VllmEngine) else 0,
    )
    bench.run(bench.engine.check_health())


def test_deltas_add_up_and_only_the_last_has_a_reason(bench: Bench) -> None:
    deltas = bench.run(bench.deltas(bench.generation(bench.prompt(40), max_tokens=9)))
    assert sum(len(delta.tokens) for delta in deltas) == 9 * 4
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert all(delta.cached_tokens == 0 for delta in deltas)


def test_the_end_token_stops_a_generation(bench: Bench) -> None:
    """Drawn nearly at random, it comes up in some of these."""

    async def draw(seed: int) -> str | None:
        wild = bench.generation(bench.prompt(8), max_tokens=1000, temperature=2.0, seed=seed, ignore_eos=False)
        deltas = await bench.deltas(wild)
        length = sum(len(delta.tokens) for delta in deltas) // 4
        assert (deltas[-1].finish_reason == "length") == (length == 1000)
        return deltas[-1].finish_reason

    async def draw_until_one_stops() -> bool:
        draws = [asyncio.create_task(draw(seed)) for seed in range(16)]
        try:
            for drawn in asyncio.as_completed(draws):
                if await drawn == "stop":
                    return True
            return False
        finally:
            for drawn in draws:
                drawn.cancel()
            await asyncio.gather(*draws, return_exceptions=True)

    assert bench.run(draw_until_one_stops())


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 65, 100, 320, 1500])
def test_a_repeat_finds_all_but_the_block_of_its_last_token(bench: Bench, length: int) -> None:
    """The rule that every prediction rests on."""
    prompt = bench.prompt(length)
    assert bench.run(bench.cached(prompt)) == 0
    assert bench.run(bench.cached(prompt)) == (length - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_what_was_generated_is_found_by_the_next_turn(bench: Bench) -> None:
    """All but the last token, which was never computed."""
    prompt = bench.prompt(90)
    output = bench.run(bench.text(bench.generation(prompt, max_tokens=70)))
    turn = [*prompt, *output, *bench.prompt(50)]
    assert bench.run(bench.cached(turn)) == (90 + 70 - 1) // BLOCK_SIZE * BLOCK_SIZE


def test_greedy_text_continues_alike_from_any_cut(bench: Bench) -> None:
    """The rest of an interrupted answer can come from elsewhere."""
    prompt = bench.prompt(50)
    whole = bench.run(bench.text(bench.generation(prompt, max_tokens=40)))
    assert len(set(whole)) > 10
    for cut in (1, 17, 39):
        rest = bench.run(bench.text(bench.generation([*prompt, *whole[:cut]], max_tokens=40 - cut)))
        assert rest == whole[cut:]


def test_many_at_once_do_not_mix(bench: Bench) -> None:
    prompts = [bench.prompt(30 + 40 * number) for number in range(8)]
    alone = [bench.run(bench.text(bench.generation(prompt, max_tokens=20))) for prompt in prompts]

    async def together() -> list[list[int]]:
        return await asyncio.gather(*[bench.text(bench.generation(prompt, max_tokens=20)) for prompt in prompts])

    assert bench.run(together()) == alone


def test_two_generations_may_share_an_id(bench: Bench) -> None:
    """Ids come from clients, who repeat them."""
    one, other = bench.generation(bench.prompt(40), max_tokens=5), bench.generation(bench.prompt(40), max_tokens=6)
    twin = Generation(request_id=one.request_id, tokens=other.tokens, sampling=other.sampling)

    async def together() -> list[int]:
        return [len(text) for text in await asyncio.gather(bench.text(one), bench.text(twin))]

    assert bench.run(together()) == [5, 6]


async def drain(stream: AsyncIterator[TokenDelta]) -> None:
    async for _ in stream:
        pass


@pytest.mark.parametrize("way", ["close the iterator", "cancel the task"])
def test_leaving_early_frees_the_blocks(bench: Bench, way: str) -> None:
    """A client that disconnects must not hold memory; what was computed stays cached."""
    prompt = bench.prompt(200)

    async def leave() -> None:
        stream = bench.engine.generate(bench.generation(prompt, max_tokens=4000))
        await anext(stream)
        assert bench.engine.load().running == 1
        if way == "close the iterator":
            await stream.aclose()  # type: ignore[attr-defined]
            return
        task = asyncio.create_task(drain(stream))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    bench.run(leave())
    bench.run(bench.until(lambda: bench.engine.load().free_blocks == POOL_BLOCKS))
    assert bench.engine.load().running == 0
    assert bench.run(bench.cached(prompt)) == 192


def test_the_backlog_is_what_waits_to_be_computed(bench: Bench) -> None:
    async def load_while_waiting() -> int:
        stream = bench.engine.generate(bench.generation(bench.prompt(3000)))
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        backlog = bench.engine.load().backlog_tokens
        await task
        await stream.aclose()  # type: ignore[attr-defined]
        return backlog

    assert bench.run(load_while_waiting()) == 3000
    assert bench.engine.load().backlog_tokens == 0


@pytest.mark.parametrize(
    "bad",
    [
        Generation(request_id="none", tokens=b"", sampling=Sampling(max_tokens=1)),
        Generation(request_id="long", tokens=packed([300] * (MAX_MODEL_LEN + 1)), sampling=Sampling(max_tokens=1)),
        Generation(request_id="zero", tokens=packed([300]), sampling=Sampling(max_tokens=0)),
    ],
    ids=lambda bad: bad.request_id,
)
def test_a_refused_request_is_the_callers_fault_and_harms_nobody(bench: Bench, bad: Generation) -> None:
    with pytest.raises(InvalidRequest):
        bench.run(bench.deltas(bad))
    assert bench.engine.load().running == bench.engine.load().waiting == 0
    bench.run(bench.engine.check_health())
    assert len(bench.run(bench.text(bench.generation(bench.prompt(5), max_tokens=3)))) == 3


def test_events_come_from_number_zero_without_a_hole(bench: Bench) -> None:
    before = len(bench.seqs)
    bench.run(bench.cached(bench.prompt(3 * BUDGET_TOKENS)))
    bench.run(bench.until(lambda: len(bench.seqs) >= before + 3))
    assert bench.seqs == list(range(len(bench.seqs)))
    assert bench.relay.block_size == BLOCK_SIZE
    assert bench.relay.counters["gaps"] == bench.relay.counters["rejected"] == 0


@pytest.mark.parametrize(("first", "second"), [(100, 300), (1500, 1600), (64, 64), (20, 500)])
def test_what_the_events_show_predicts_what_the_engine_finds(bench: Bench, first: int, second: int) -> None:
    """The whole point: a router that follows the events knows the engine's own count beforehand."""
    prompt = bench.prompt(max(first, second))
    bench.run(bench.cached(prompt[:first]))
    bench.run(bench.until(lambda: bench.shown_prefix(prompt[:first]) == (first - 1) // BLOCK_SIZE * BLOCK_SIZE))
    predicted = bench.shown_prefix(prompt[:second])
    assert bench.run(bench.cached(prompt[:second])) == predicted
    bench.relay.check_integrity()


def shows(bench: Bench, prompt: list[int], tokens: int) -> bool:
    return bench.shown_prefix(prompt) == tokens


def test_eviction_keeps_events_and_engine_in_step(bench: Bench) -> None:
    """More prompts than the pool holds: the oldest go, and the events say which."""
    prompts = [bench.prompt(2000) for _ in range(14)]
    for prompt in prompts:
        bench.run(bench.cached(prompt))
    bench.run(bench.until(lambda: bench.shown_prefix(prompts[-1]) == 1984))
    assert sum(map(len, bench.view.tiers.values())) <= POOL_BLOCKS
    for prompt in (prompts[-1], prompts[0], prompts[5]):
        predicted = bench.shown_prefix(prompt)
        assert bench.run(bench.cached(prompt)) == predicted
        bench.run(bench.until(partial(shows, bench, prompt, 1984)))
    bench.relay.check_integrity()


def test_tenants_with_salts_share_nothing(bench: Bench) -> None:
    prompt = bench.prompt(100)
    found = {"a": 0, "b": 0, "": 0}
    assert {salt: bench.run(bench.cached(prompt, salt)) for salt in found} == found
    assert {salt: bench.run(bench.cached(prompt, salt)) for salt in found} == dict.fromkeys(found, 96)
    bench.run(bench.until(lambda: all(bench.shown_prefix(prompt, salt) == 96 for salt in found)))
    assert bench.shown_prefix(prompt, "c") == 0


def test_reset_forgets_all_but_not_under_a_request(bench: Bench) -> None:
    prompt = bench.prompt(100)
    bench.run(bench.cached(prompt))

    async def reset_while_running() -> bool:
        stream = bench.engine.generate(bench.generation(bench.prompt(10), max_tokens=3000))
        await anext(stream)
        done = await bench.engine.reset_prefix_cache()
        await stream.aclose()  # type: ignore[attr-defined]
        return done

    assert not bench.run(reset_while_running())
    bench.run(bench.until(lambda: bench.engine.load().free_blocks == POOL_BLOCKS))
    assert bench.run(bench.engine.reset_prefix_cache())
    assert bench.run(bench.cached(prompt)) == 0
    bench.run(bench.until(lambda: bench.shown_prefix(prompt) == 96))
    assert sum(map(len, bench.view.tiers.values())) == 3, "the clear comes with the next step's events"


def test_one_prompt_in_parallel_is_announced_as_often_as_it_is_held(bench: Bench) -> None:
    prompt = bench.prompt(64)

    async def together() -> None:
        await asyncio.gather(*[bench.cached(prompt) for _ in range(4)])

    bench.run(together())
    bench.run(bench.until(lambda: bench.shown_prefix([*prompt, 1]) == 64))
    copies = bench.relay.resident()["gpu"]
    assert all(count >= 1 for count in copies.values())
    assert bench.run(bench.cached([*prompt, 1])) == 64


SCRIPT = '<think>\nhé 🙂\n</think>\n\nSo:\n<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>'
SCHEMA = '{"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": false}'


def formed(bench: Bench, form: Structured, **sampling: Any) -> list[TokenDelta]:
    wishes: dict[str, Any] = {"ignore_eos": False, "structured": form} | sampling
    return bench.run(bench.deltas(bench.generation(bench.prompt(40), max_tokens=2000, **wishes)))


def said(tiny_model: Path, deltas: list[TokenDelta]) -> str:
    tokens = unpacked(b"".join([delta.tokens for delta in deltas]))
    return str(Tokenizer.from_file(str(tiny_model / "tokenizer.json")).decode(tokens))


def test_a_choice_of_one_text_is_said_to_the_letter(bench: Bench, tiny_model: Path) -> None:
    """How an engine is told what to say."""
    deltas = formed(bench, Structured(kind="choice", spec=json.dumps([SCRIPT])))
    assert said(tiny_model, deltas) == SCRIPT
    assert deltas[-1].finish_reason == "stop"


def test_an_answer_has_the_form_it_must_have(bench: Bench, tiny_model: Path) -> None:
    deltas = formed(bench, Structured(kind="json", spec=SCHEMA))
    assert json.loads(said(tiny_model, deltas)) == {"a": 1}
    assert deltas[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    "form",
    [
        Structured(kind="json", spec="{"),
        Structured(kind="choice", spec="[]"),
        Structured(kind="regex", spec="(a"),
        Structured(kind="grammar", spec="root ::= "),
        Structured(kind="structural_tag", spec='{"type": "structural_tag", "format": {"type": "unheard_of"}}'),
    ],
    ids=lambda form: form.kind,
)
def test_a_form_that_cannot_be_followed_is_the_callers_fault_and_harms_nobody(bench: Bench, form: Structured) -> None:
    with pytest.raises(InvalidRequest):
        formed(bench, form)
    bench.run(bench.engine.check_health())
    assert len(bench.run(bench.text(bench.generation(bench.prompt(5), max_tokens=3)))) == 3


@pytest.mark.parametrize("alternatives", [0, 3])
def test_every_token_has_its_log_probability(bench: Bench, alternatives: int) -> None:
    deltas = bench.run(bench.deltas(bench.generation(bench.prompt(20), max_tokens=8, logprobs=alternatives)))
    for delta in deltas:
        assert [score.token for score in delta.logprobs] == unpacked(delta.tokens)
        for score in delta.logprobs:
            assert score.logprob <= 0
            assert len(score.top) <= alternatives
            assert not alternatives or score.top[0] == (score.token, score.logprob), "greedy: the likeliest"


def test_nobody_pays_for_log_probabilities_unasked(bench: Bench) -> None:
    assert not any(delta.logprobs for delta in bench.run(bench.deltas(bench.generation(bench.prompt(9), max_tokens=4))))


def test_every_wish_can_be_made_at_once(bench: Bench) -> None:
    wishes: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "min_p": 0.05, "seed": 7, "logprobs": 2}
    wishes |= {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
    wishes["logit_bias"] = ((400, 1.0), (500, -100.0))
    assert len(bench.run(bench.text(bench.generation(bench.prompt(20), max_tokens=12, **wishes)))) == 12


ON_VLLM = [pytest.param("vllm", marks=pytest.mark.vllm)]


@pytest.mark.parametrize("bench", ON_VLLM, indirect=True)
def test_biases_penalties_and_floors_steer_a_real_engine(bench: Bench) -> None:
    """A simulated one draws its tokens from nothing that could be steered."""

    def drawn(**sampling: Any) -> list[int]:
        return bench.run(bench.text(bench.generation(prompt, max_tokens=70, **sampling)))

    prompt = bench.prompt(20)
    greedy, bias = drawn(), ((400, 100.0),)
    assert drawn(logit_bias=bias) == [400] * 70
    assert set(drawn(logit_bias=bias, frequency_penalty=2.0)) > {400}
    assert set(drawn(logit_bias=((400, 3.0),))) != {400}
    assert drawn(temperature=2.0, min_p=1.0, seed=3) == greedy
    assert len(set(drawn(repetition_penalty=1000.0))) == 70


@pytest.mark.parametrize("bench", ON_VLLM, indirect=True)
def test_alternatives_of_a_token_are_the_likeliest_in_order(bench: Bench) -> None:
    deltas = bench.run(
        bench.deltas(bench.generation(bench.prompt(20), max_tokens=5, logprobs=4, temperature=2.0, seed=1))
    )
    for score in [score for delta in deltas for score in delta.logprobs]:
        assert [logprob for _, logprob in score.top] == sorted((logprob for _, logprob in score.top), reverse=True)
        assert len({token for token, _ in score.top}) == 4
