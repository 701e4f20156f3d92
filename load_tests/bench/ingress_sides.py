"""The two stacks that `kvist bench ingress` compares, as it sees them: an address, two models, processes."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from workers.chat_template import chat_template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from load_tests.bench.ingress_client import Address

BURST: Final = "agent"  # its engines take no time
PACED: Final = "paced"  # its engines make a token for every stream at each step
STEP_S: Final = 0.02
WORKERS: Final = 2  # of each model
BLOCK_SIZE: Final = 16
POOL_BLOCKS: Final = 400_000
WINDOW: Final = 300_000
BATCHED_TOKENS: Final = 1_000_000
SEQUENCES: Final = 1_024
TOKENIZER_FILES: Final = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


class Processes(NamedTuple):
    """Ids by kind: `frontend` is all between client and workers, `workers` are the engines', `rest` the others."""

    frontend: tuple[int, ...]
    workers: tuple[int, ...]
    rest: tuple[int, ...] = ()


class Side(NamedTuple):
    """A running stack. `processes` looks for them: a proxy may be replaced while it serves. `journals` are what
    simulated engines write (see `workers.journal`) by model, where they do."""

    name: str
    address: Address
    processes: Callable[[], Processes]
    journals: Mapping[str, Path] = MappingProxyType({})


def engine_args(journal: Path, *, paced: bool) -> dict[str, Any]:
    """Of Kvist's simulated engines."""
    pace = {"step_s": STEP_S, "prefill_token_s": 0.0, "decode_s": 0.0} if paced else {"speed": "inf"}
    return {
        **pace,
        "block_size": BLOCK_SIZE,
        "pool_blocks": POOL_BLOCKS,
        "max_model_len": WINDOW,
        "max_batched_tokens": BATCHED_TOKENS,
        "max_num_seqs": SEQUENCES,
        "journal": str(journal),
    }


def make_model(source: Path, folder: Path) -> Path:
    """A model folder for both sides: the tokenizer of `source`, and a chat template that writes tools and calls."""
    folder.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            (folder / name).write_bytes((source / name).read_bytes())
    (folder / "chat_template.jinja").write_text(chat_template("system-first"), encoding="utf-8")
    return folder


def named(processes: Iterable[tuple[int, str]], *marks: str) -> tuple[int, ...]:
    """Ids of those whose command line (or title) holds one of `marks`."""
    return tuple(pid for pid, command in processes if any(mark in command for mark in marks))
