"""What every engine offers: tokens in, token deltas out, KV events on the side.

Real engines (vLLM) and the simulator implement `Engine` alike; `tests/conformance` runs one suite over both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

FinishReason = Literal["stop", "length", "abort", "error"]


class Structured(msgspec.Struct, frozen=True, kw_only=True):
    """A form that the generated text must have. `spec` is JSON text: a schema, a list of choices, a structural tag;
    or a regex or grammar as it is."""

    kind: Literal["json", "choice", "regex", "grammar", "structural_tag"]
    spec: str


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens. Stop *strings* are not here: the ingress finds them in the text and ends the stream.

    `logprobs` None means none, else how many alternatives of each token are wanted."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    structured: Structured | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt to continue. `tokens` are packed u32, little-endian. `cache_salt` keeps tenants' blocks apart.

    `expected_cached_tokens` is the router's prediction: it only sharpens the engine's backlog gauge. The last
    `resumed_tokens` of the prompt are the beginning of the answer, which another engine generated: a form counts them,
    `max_tokens` does not."""

    request_id: str
    tokens: bytes
    sampling: Sampling
    cache_salt: str = ""
    session_id: str = ""
    expected_cached_tokens: int = 0
    resumed_tokens: int = 0


class TokenLogprob(msgspec.Struct, frozen=True):
    """A generated token with its log probability, and the likeliest alternatives (token, log probability)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens (packed u32, little-endian, maybe none) and what is known now.

    `cached_tokens` is the engine's own count of prompt tokens it did not compute, set on the first delta and later
    ones. `finish_reason` is set on exactly one delta, the last. `logprobs` are of `tokens`, when they were asked for.
    """

    tokens: bytes = b""
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


def joined(deltas: Sequence[TokenDelta]) -> TokenDelta:
    """One delta that says what these say in a row; there is at least one."""
    if len(deltas) == 1:
        return deltas[0]
    counts = [delta.cached_tokens for delta in deltas if delta.cached_tokens is not None]
    return TokenDelta(
        tokens=b"".join([delta.tokens for delta in deltas]),
        cached_tokens=counts[-1] if counts else None,
        finish_reason=deltas[-1].finish_reason,
        logprobs=tuple([score for delta in deltas for score in delta.logprobs]),
    )


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a started engine. `pool_blocks` counts usable blocks of `block_size` tokens.

    An `optimistic` engine finds at most what its events tell: it also needs the state of layers whose blocks come and
    go on their own (sliding windows, state spaces).

    A step computes at most `step_tokens` (0: unknown), of which one prompt takes at most `share_tokens` while others
    are there (0: all, first come first served)."""

    model: str
    block_size: int
    pool_blocks: int
    max_model_len: int
    optimistic: bool = False
    step_tokens: int = 0
    share_tokens: int = 0


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A gauge, not a count: what the engine holds now. `backlog_tokens` are prompt tokens not yet computed."""

    running: int = 0
    waiting: int = 0
    backlog_tokens: int = 0
    free_blocks: int = 0


class EventBatch(msgspec.Struct, frozen=True):
    """One batch of KV events as the engine encoded it (msgpack, vLLM's wire form), with the engine's own number."""

    seq: int
    payload: bytes


class Engine(Protocol):
    """The contract every engine keeps.

    Created outside the event loop's hot path; all methods are called on one event loop. `generate` may run many times
    at once. Closing the iterator of `generate` (or cancelling its task) aborts that generation and frees its blocks.
    """

    @property
    def info(self) -> EngineInfo:
        """Known once `start` has returned."""
        ...

    async def start(self) -> None:
        """Load the model and begin to publish events. Raises `ReplicaDied` with a plain reason when it cannot."""
        ...

    def generate(self, generation: Generation) -> AsyncIterator[TokenDelta]:
        """Yield deltas; the last has a finish reason. Raises `InvalidRequest` for a prompt or sampling that the engine
        refuses, `ReplicaDied` when the engine is gone."""
        ...

    def events(self) -> AsyncIterator[EventBatch]:
        """Every batch from number 0 on, in order, without gaps where the engine still has them. One reader."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; false when requests hold some. The caller announces the clear."""
        ...

    def load(self) -> EngineLoad:
        """Cheap; never waits."""
        ...

    async def check_health(self) -> None:
        """Raise `ReplicaDied` when the engine can no longer serve."""
        ...

    async def close(self) -> None:
        """Stop and leave no process behind. Safe to call twice."""
        ...
