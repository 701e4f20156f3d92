"""The demo's first half: what one changing line at the front of a long prompt costs, and that stripping removes it.

Three arms send the same agent prompt, interleaved, the two APIs in turn:
`stable`    an attribution header that never changes, stripping off
`varying`   a new header on every request, stripping off
`stripped`  a new header on every request, stripping on

The header adds some 40 tokens, so cached tokens of `stable` and `stripped` are equal only when the header does not push
the prompt over a block boundary: the question is padded until it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec

from load_tests.client import Api, Prompt, Sample, Turn, count_tokens, stream
from load_tests.prose import attribution_header, sentences
from load_tests.stats import percentile

if TYPE_CHECKING:
    import aiohttp

Arm = Literal["stable", "varying", "stripped"]
ARMS: Final[tuple[Arm, ...]] = get_args(Arm)
APIS: Final[tuple[Api, ...]] = get_args(Api)
REQUESTS_PER_ARM: Final = 15
MIN_PROMPT_TOKENS: Final = 32_768
SYSTEM_SENTENCES: Final = 1_300
ANSWER_TOKENS: Final = 4
CONSTANT_SEED: Final = 0


class ArmSummary(msgspec.Struct, frozen=True):
    """One arm's numbers."""

    n: int
    ttft_ms_p50: float
    ttft_ms_p99: float
    cached_tokens_p50: int


class ArmsResult(msgspec.Struct, frozen=True):
    """All samples by arm, the prompt's size, and whether counting tokens ignores the header."""

    prompt_tokens: int
    samples: dict[Arm, list[Sample]]
    counted_without_header: int
    counted_with_header: int

    def summary(self, arm: Arm) -> ArmSummary:
        ttfts = [sample.ttft_ms for sample in self.samples[arm]]
        cached = [sample.cached_tokens for sample in self.samples[arm]]
        return ArmSummary(
            n=len(ttfts),
            ttft_ms_p50=round(percentile(ttfts, 50), 2),
            ttft_ms_p99=round(percentile(ttfts, 99), 2),
            cached_tokens_p50=int(percentile(cached, 50)),
        )

    def ratio(self, arm: Arm) -> float:
        """p50 of `arm` over p50 of `stable`."""
        return round(self.summary(arm).ttft_ms_p50 / self.summary("stable").ttft_ms_p50, 3)


async def run_arms(http: aiohttp.ClientSession, *, stripping: str, raw: str, block_size: int) -> ArmsResult:
    """Measure. `stripping` and `raw` are two served names of the same replicas, with rule 1 on and off."""
    system = sentences(1, SYSTEM_SENTENCES)
    question = await _question_inside_block(http, system=system, raw=raw, stripping=stripping, block_size=block_size)
    models: dict[Arm, str] = {"stable": raw, "varying": raw, "stripped": stripping}
    samples: dict[Arm, list[Sample]] = {arm: [] for arm in ARMS}
    for arm in ("stable", "stripped"):  # the first request of a prompt is cold for everybody; it is not measured
        for api in APIS:
            await _send(http, api=api, model=models[arm], prompt=_prompt(CONSTANT_SEED, system, question))
    seed = CONSTANT_SEED
    for i in range(REQUESTS_PER_ARM):
        for arm in ARMS[i % 3 :] + ARMS[: i % 3]:
            seed += 1
            prompt = _prompt(CONSTANT_SEED if arm == "stable" else seed, system, question)
            samples[arm].append(await _send(http, api=APIS[i % 2], model=models[arm], prompt=prompt))
    plain = Prompt(system=(system,), turns=(Turn("user", question),))
    return ArmsResult(
        prompt_tokens=samples["stripped"][0].prompt_tokens,
        samples=samples,
        counted_without_header=await count_tokens(http, model=stripping, prompt=plain),
        counted_with_header=await count_tokens(http, model=stripping, prompt=_prompt(seed, system, question)),
    )


def _prompt(header_seed: int, system: str, question: str) -> Prompt:
    return Prompt(system=(attribution_header(header_seed), system), turns=(Turn("user", question),))


async def _send(http: aiohttp.ClientSession, *, api: Api, model: str, prompt: Prompt) -> Sample:
    return await stream(http, api=api, model=model, prompt=prompt, max_tokens=ANSWER_TOKENS)


async def _question_inside_block(
    http: aiohttp.ClientSession, *, system: str, raw: str, stripping: str, block_size: int
) -> str:
    """A question that ends the prompt in the same block with and without the header."""
    question = "Which module keeps the index?"
    for _ in range(block_size):
        prompt = _prompt(CONSTANT_SEED, system, question)
        bare = await count_tokens(http, model=stripping, prompt=prompt)
        full = await count_tokens(http, model=raw, prompt=prompt)
        if (bare - 1) // block_size == (full - 1) // block_size and bare >= MIN_PROMPT_TOKENS:
            return question
        question += " Please look again." if bare >= MIN_PROMPT_TOKENS else "\n" + sentences(bare, 60)
    raise RuntimeError(f"the header is longer than a block of {block_size} tokens")
