"""Paces of engines, as data files: what was measured or published, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from router.errors import InvalidRequest
from workers.simulator import PositiveInt, Seconds, SimParameters

FOLDER: Final = Path(__file__).parent / "calibrations"


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long steps take, as `workers.simulator` says; a request is `front_s` under way between its client and the
    engine. `source` says where the numbers are from."""

    name: str
    source: str
    step_s: Seconds
    prefill_token_s: Seconds
    decode_s: Seconds
    front_s: Seconds
    step_tokens: PositiveInt
    max_num_seqs: PositiveInt
    attention_pair_s: Seconds = 0.0

    def parameters(self, *, block_size: int, pool_blocks: int, share_tokens: int = 0) -> SimParameters:
        """An engine of this pace. `share_tokens` is the most of a step that one prompt gets while others are there."""
        return SimParameters(
            block_size=block_size,
            pool_blocks=pool_blocks,
            max_model_len=block_size * pool_blocks,
            max_num_seqs=self.max_num_seqs,
            max_batched_tokens=self.step_tokens,
            long_prefill_token_threshold=share_tokens,
            step_s=self.step_s,
            prefill_token_s=self.prefill_token_s,
            attention_pair_s=self.attention_pair_s,
            decode_s=self.decode_s,
        )


def calibration_names() -> tuple[str, ...]:
    """What can be named."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def calibration_named(name: str) -> Calibration:
    """The calibration in `calibrations/<name>.json`. Raises `InvalidRequest` for an unknown one."""
    if name not in calibration_names():
        raise InvalidRequest(f"unknown calibration {name!r}; known are {', '.join(calibration_names())}")
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Calibration)
