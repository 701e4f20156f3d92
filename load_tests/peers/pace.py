"""One pace for two simulators: Kvist's SimEngine and Dynamo's mock engine take the same time for the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

TABLE_STEP_TOKENS: Final = 32
TABLE_CONTEXTS: Final = 129
TABLE_LOADS: Final = 65


class Pace(NamedTuple):
    """A step takes `step_s + prefill tokens · prefill_token_s + decodes · decode_s`; an engine has `pool_blocks`."""

    step_s: float
    prefill_token_s: float
    decode_s: float
    step_tokens: int
    block_size: int
    pool_blocks: int
    max_model_len: int

    def sim_args(self) -> dict[str, Any]:
        """`engine_args` of a model of Kvist's with `engine: sim`."""
        return {
            "step_s": self.step_s,
            "prefill_token_s": self.prefill_token_s,
            "decode_s": self.decode_s,
            "max_batched_tokens": self.step_tokens,
            "block_size": self.block_size,
            "pool_blocks": self.pool_blocks,
            "max_model_len": self.max_model_len,
        }

    def mocker_options(self, table: Path) -> dict[str, Any]:
        """Options of `python -m dynamo.mocker`. Writes `table`, the file (.npz) that it looks its times up in: the time
        of a prefill by its new tokens, that of a decode step by cached tokens and tokens per request."""
        loads = np.linspace(0, self.pool_blocks * self.block_size, TABLE_LOADS)
        contexts = np.linspace(1, self.max_model_len, TABLE_CONTEXTS)
        tokens = np.arange(0, self.step_tokens + TABLE_STEP_TOKENS, TABLE_STEP_TOKENS, dtype=float)
        decodes = np.maximum(1.0, loads[:, None] / contexts[None, :])
        np.savez(
            table,
            prefill_isl=tokens,
            prefill_ttft_ms=1e3 * (self.step_s + tokens * self.prefill_token_s),
            decode_active_kv_tokens=loads,
            decode_context_length=contexts,
            decode_itl=1e3 * (self.step_s + decodes * self.decode_s),
        )
        return {
            "--planner-profile-data": table,
            "--max-num-batched-tokens": self.step_tokens,
            "--block-size": self.block_size,
            "--num-gpu-blocks-override": self.pool_blocks,
            "--max-model-len": self.max_model_len,
        }
