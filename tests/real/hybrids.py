"""Random tiny models whose layers are not all full attention, made on the spot: a config, and the demo's tokenizer.

What of these runs on vLLM's CPU backend (0.32.0), and what does not, is in docs/reliability.md.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, Final

from workers.models import TINY_CONFIG

if TYPE_CHECKING:
    from pathlib import Path

HYBRIDS: Final[dict[str, dict[str, Any]]] = {
    "sliding-window": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 64,
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_local_base_freq": 10000.0,
        "tie_word_embeddings": True,
    },
    "short-convolution": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention"],
        "norm_eps": 1e-6,
        "conv_L_cache": 3,
        "conv_bias": False,
        "conv_dim": 64,
        "conv_dim_out": 64,
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
    },
}


def prepare_hybrid(name: str, tiny_model: Path, folder: Path) -> Path:
    """A folder that vLLM loads with `load_format="dummy"`: there are no weights in it."""
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / file, folder / file)
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | HYBRIDS[name]), encoding="utf-8")
    return folder
