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

_MAMBA: Final[dict[str, Any]] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 64,
}
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
    "state-space": _MAMBA
    | {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 128,
        "attention_multiplier": 0.18,
    },
}


def prepare_hybrid(name: str, tiny_model: Path, folder: Path) -> Path:
    """A folder that vLLM loads with `load_format="dummy"`: there are no weights in it."""
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / file, folder / file)
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | HYBRIDS[name]), encoding="utf-8")
    return folder
