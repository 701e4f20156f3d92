"""The model's own chat template, rendered in transformers' sandbox. Requests can neither bring nor steer one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from cluster.prompt.template import Ask
from router.errors import InvalidRequest, ModelUnusable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cluster.prompt.template import Turn

# Templates write these themselves, by name.
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class JinjaChatTemplate:
    """A `ChatTemplate` read from a model folder."""

    def __init__(self, folder: Path) -> None:
        """Raises `ModelUnusable` when the folder has no chat template or one that cannot be rendered."""
        config = _read_json(folder / "tokenizer_config.json")
        self._source = _source(folder, config)
        self._variables = {
            name: text for name in _SPECIAL_TOKENS if (text := _token_text(config.get(name))) is not None
        }
        try:
            self._render([{"role": "user", "content": "x"}], Ask())
        except (TemplateError, TypeError, ValueError) as error:
            raise ModelUnusable(f"the chat template of {folder} cannot be rendered: {error}") from error

    def render(self, turns: Sequence[Turn], ask: Ask) -> str:
        """See `cluster.prompt.template.ChatTemplate`."""
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        try:
            return self._render(messages, ask)
        except (TemplateError, TypeError, ValueError) as error:
            # Templates refuse orders of roles that their model was not trained on, in their own words.
            raise InvalidRequest(f"messages: the model's chat template refuses them: {error}") from error

    def _render(self, messages: list[dict[str, Any]], ask: Ask) -> str:
        rendered, _ = render_jinja_template(
            conversations=[messages],
            chat_template=self._source,
            add_generation_prompt=ask.ending == "open_turn",
            continue_final_message=ask.ending == "continue_last",
            **self._variables,
        )
        return str(rendered[0])


def _source(folder: Path, config: dict[str, Any]) -> str:
    """A file of its own wins over the tokenizer's settings; of several named templates the default one is taken."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    if not isinstance(template, str):
        raise ModelUnusable(f"{folder} has no chat template")
    return template


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ModelUnusable(f"{path} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}


def _token_text(token: Any) -> str | None:
    """Settings name a token by its text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
