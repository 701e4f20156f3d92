"""Models that come without a chat template and whose prompts vLLM writes itself, in code of its own.

That code only writes prompts that end in a new turn of the assistant; other endings are cut from what it writes.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from cluster.models.chat_template import REFUSALS, message_of, switches_of, tools_of
from cluster.prompt.template import Ask, Turn
from router.errors import InvalidRequest, ModelUnusable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# By architecture, as vLLM chooses: its name for the tokenizer that writes prompts as text.
_MODES: Final = {
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "DeepseekV4ForConditionalGeneration": "deepseek_v4",
    "DeepseekV41ForCausalLM": "deepseek_v41",
}
_REFUSALS: Final = (*REFUSALS, NotImplementedError, AssertionError)
_WORD: Final = "kvistword"


def vllm_mode(folder: Path) -> str | None:
    """vLLM's name for what writes this model's prompts; None for a model that it writes with a chat template."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return next((_MODES[name] for name in config.get("architectures") or [] if name in _MODES), None)


class VllmChatTemplate:
    """A `ChatTemplate` over vLLM's own code. Its import takes seconds."""

    source = ""  # there is no Jinja text

    def __init__(self, folder: Path, mode: str) -> None:
        """Raises `ModelUnusable` where vLLM is not installed, or does not write this model's prompts as text."""
        if find_spec("vllm") is None:
            raise ModelUnusable(f"{folder} has no chat template: vLLM writes its prompts, install it here")
        from vllm.tokenizers.registry import TokenizerRegistry  # noqa: PLC0415 - optional, and slow

        try:
            self._tokenizer: Any = TokenizerRegistry.load_tokenizer(mode, str(folder))
            self._written([Turn("user", _WORD)], Ask())
        except Exception as error:
            raise ModelUnusable(f"vLLM cannot write prompts of {folder}: {error}") from error

    def render(self, turns: Sequence[Turn], ask: Ask) -> str:
        """See `cluster.prompt.template.ChatTemplate`."""
        try:
            text = self._written(turns, ask)
            answered = bool(turns) and turns[-1].role == "assistant"
            if ask.ending == "continue_last":
                return text.removesuffix(self._turn_end(ask))
            header = self._header(ask)
            if ask.ending == "closed":
                return text if answered else text.removesuffix(header)
            return text + header if answered else text
        except _REFUSALS as error:
            raise InvalidRequest(f"messages: the model's prompt cannot be written: {error}") from error

    def _written(self, turns: Sequence[Turn], ask: Ask) -> str:
        text = self._tokenizer.apply_chat_template(
            [message_of(turn, ask.form) for turn in turns],
            tools=tools_of(ask),
            tokenize=False,
            **switches_of(ask),
        )
        if not isinstance(text, str):
            raise TypeError("it is written as tokens, not as text")
        return text

    def _header(self, ask: Ask) -> str:
        """What begins a new turn of the assistant."""
        return self._after_word([Turn("user", _WORD)], ask)

    def _turn_end(self, ask: Ask) -> str:
        return self._after_word([Turn("user", "x"), Turn("assistant", _WORD)], ask)

    def _after_word(self, turns: Sequence[Turn], ask: Ask) -> str:
        return self._written(turns, ask._replace(tools=())).rpartition(_WORD)[2]
