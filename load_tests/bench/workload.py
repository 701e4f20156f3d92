"""What every measure is fed: blocks, prompts and events, the same for Kvist and for a peer.

Pools are made of chains as agents leave them: long prompts that several replicas share in full, in part or not at all,
and private conversations of PRIVATE_CHAIN_BLOCKS. All content is pseudo-random with fixed seeds.
"""

from __future__ import annotations

import random
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

PRIVATE_CHAIN_BLOCKS: Final = 128
LAST_CHAIN_BLOCKS: Final = 8
VOCABULARY: Final = 150_000


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything. The defaults are what the rows' names say."""

    block_size: int = 16
    replicas: int = 64
    prompt_blocks: int = 3_250  # 52,000 tokens
    long_prompt_blocks: int = 13_000
    shared_blocks: int = 400  # a system prompt and its tools
    private_blocks: int = 8_192  # of every replica, beside the prompts
    choice_private_blocks: int = 1_024
    ingest_replicas: int = 8
    ingest_blocks: int = 16_384  # per replica
    blocks_per_event: int = 64
    memory_blocks: int = 1_000_000
    calls: int = 200  # per round, of what is measured by the call


class Run(NamedTuple):
    """Consecutive blocks that one replica stores with one event, after `parent` (None: from the start)."""

    replica: int
    parent: int | None
    hashes: list[int]


class TokenRun(NamedTuple):
    """The same as an engine announces it, with the tokens."""

    run: Run
    tokens: array[int]


class MatchCase(NamedTuple):
    """A prompt, and how many of its blocks each replica holds."""

    name: str
    hashes: list[int]
    held: list[int]


def random_hashes(rng: random.Random, count: int) -> list[int]:
    """Independent u64."""
    return array("Q", rng.randbytes(8 * count)).tolist()


def random_tokens(rng: random.Random, count: int) -> array[int]:
    """Independent token ids."""
    return array("I", [value % VOCABULARY for value in array("I", rng.randbytes(4 * count))])


def match_cases(sizes: Sizes) -> list[MatchCase]:
    """Prompts of both lengths, each held in three ways.

    (plain)        every second replica holds all of it, the others nothing
    shared_prefix  every second replica holds all of it, the others its first `shared_blocks`
    staggered      every replica holds another length, in no order: nothing learnt from one helps with the next
    """
    rng = random.Random(1)
    cases = []
    for blocks in (sizes.prompt_blocks, sizes.long_prompt_blocks):
        staggered = [blocks * (replica + 1) // sizes.replicas for replica in range(sizes.replicas)]
        rng.shuffle(staggered)
        for name, held in {
            "": _alternating(sizes.replicas, blocks, 0),
            "_shared_prefix": _alternating(sizes.replicas, blocks, min(blocks, sizes.shared_blocks)),
            "_staggered": staggered,
        }.items():
            cases.append(
                MatchCase(f"match_{blocks}_blocks_{sizes.replicas}_replicas{name}_us", random_hashes(rng, blocks), held)
            )
    return cases


def match_runs(cases: list[MatchCase], sizes: Sizes) -> Iterator[Run]:
    """What fills the replicas before `cases` are matched: their prompts, and private blocks."""
    rng = random.Random(2)
    for replica in range(sizes.replicas):
        for case in cases:
            yield from _runs(replica, case.hashes[: case.held[replica]], sizes)
        yield from _private_runs(rng, replica, sizes.private_blocks, sizes)


def pool_runs(sizes: Sizes) -> list[Run]:
    """Full pools of `ingest_replicas`: every second one holds the long prompt, all else is private."""
    return [run for run, _ in token_runs(sizes)]


def memory_runs(sizes: Sizes) -> Iterator[Run]:
    """`memory_blocks` private blocks, spread over `replicas`."""
    rng = random.Random(3)
    for replica in range(sizes.replicas):
        yield from _private_runs(rng, replica, sizes.memory_blocks // sizes.replicas, sizes)


def token_runs(sizes: Sizes) -> list[TokenRun]:
    """The pools of `pool_runs` with tokens, in the order of arrival: replicas take turns. The last blocks of every
    replica are a prompt of their own, LAST_CHAIN_BLOCKS long: once they are found, all is in."""
    by_replica = [list(_pool(replica, sizes)) for replica in range(sizes.ingest_replicas)]
    longest = max(map(len, by_replica))
    return [runs[turn] for turn in range(longest) for runs in by_replica if turn < len(runs)]


def choice_token_runs(sizes: Sizes) -> tuple[array[int], list[TokenRun]]:
    """A prompt, and what `replicas` hold of it (the `shared_prefix` way) beside `choice_private_blocks`."""
    prompt = _Chain.make(random.Random(4), sizes.prompt_blocks, sizes)
    runs: list[TokenRun] = []
    for replica, held in enumerate(_alternating(sizes.replicas, sizes.prompt_blocks, sizes.shared_blocks)):
        rng = random.Random(1_000 + replica)
        runs += prompt.runs(replica, held, sizes)
        for chain in _private_chains(rng, sizes.choice_private_blocks, sizes):
            runs += chain.runs(replica, len(chain.hashes), sizes)
    return prompt.tokens, runs


def last_prompts(runs: list[TokenRun]) -> dict[int, list[int]]:
    """Replica → the tokens of the prompt it stored last."""
    found: dict[int, list[int]] = {}
    for (replica, parent, _), tokens in runs:
        found[replica] = ([] if parent is None else found[replica]) + tokens.tolist()
    return found


def engine_frame(token_run: TokenRun, sizes: Sizes) -> bytes:
    """One batch as vLLM 0.32 sends it."""
    (_, parent, hashes), tokens = token_run
    event = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens.tolist(),
        "block_size": sizes.block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return msgspec.msgpack.encode((0.0, (event,), 0))


class _Chain(NamedTuple):
    hashes: list[int]
    tokens: array[int]

    @classmethod
    def make(cls, rng: random.Random, blocks: int, sizes: Sizes) -> _Chain:
        return cls(random_hashes(rng, blocks), random_tokens(rng, blocks * sizes.block_size))

    def runs(self, replica: int, blocks: int, sizes: Sizes) -> Iterator[TokenRun]:
        at = 0
        for run in _runs(replica, self.hashes[:blocks], sizes):
            end = at + len(run.hashes)
            yield TokenRun(run, self.tokens[at * sizes.block_size : end * sizes.block_size])
            at = end


def _pool(replica: int, sizes: Sizes) -> Iterator[TokenRun]:
    rng = random.Random(100 + replica)
    left = sizes.ingest_blocks
    if replica % 2 == 0 and left > sizes.prompt_blocks + LAST_CHAIN_BLOCKS:
        yield from _Chain.make(random.Random(5), sizes.prompt_blocks, sizes).runs(replica, sizes.prompt_blocks, sizes)
        left -= sizes.prompt_blocks
    for chain in _private_chains(rng, left - LAST_CHAIN_BLOCKS, sizes):
        yield from chain.runs(replica, len(chain.hashes), sizes)
    yield from _Chain.make(rng, LAST_CHAIN_BLOCKS, sizes).runs(replica, LAST_CHAIN_BLOCKS, sizes)


def _private_chains(rng: random.Random, blocks: int, sizes: Sizes) -> Iterator[_Chain]:
    for start in range(0, blocks, PRIVATE_CHAIN_BLOCKS):
        yield _Chain.make(rng, min(PRIVATE_CHAIN_BLOCKS, blocks - start), sizes)


def _private_runs(rng: random.Random, replica: int, blocks: int, sizes: Sizes) -> Iterator[Run]:
    for start in range(0, blocks, PRIVATE_CHAIN_BLOCKS):
        yield from _runs(replica, random_hashes(rng, min(PRIVATE_CHAIN_BLOCKS, blocks - start)), sizes)


def _runs(replica: int, hashes: list[int], sizes: Sizes) -> Iterator[Run]:
    step = sizes.blocks_per_event
    for at in range(0, len(hashes), step):
        yield Run(replica, hashes[at - 1] if at else None, hashes[at : at + step])


def _alternating(replicas: int, even: int, odd: int) -> list[int]:
    return [odd if replica % 2 else even for replica in range(replicas)]
