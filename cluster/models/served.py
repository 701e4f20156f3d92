"""One model as the ingress serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.prompt.canonical import Rules


class ServedModel:
    """Name, context window, and everything that turns a conversation into tokens and tokens into text."""


def load_model(folder: Path, *, name: str, max_model_len: int, rules: Rules) -> ServedModel:
    """Read tokenizer and chat template from a model folder. Raises `ModelUnusable` with a plain reason."""
    raise NotImplementedError(folder, name, max_model_len, rules)
