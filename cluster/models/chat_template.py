"""The model's own chat template, rendered in transformers' sandbox. Requests can neither bring nor steer one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from cluster.prompt.json_text import arguments_text, function_of, object_of
from cluster.prompt.template import Ask, Turn
from router.errors import InvalidRequest, ModelUnusable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cluster.prompt.conversation import ToolCall
    from cluster.prompt.template import Form

# Templates write these themselves, by name.
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
# What families call the same things. A template reads the names it knows.
_REASONING: Final = ("reasoning_content", "reasoning", "thinking")
_KEEP_THINKING: Final[dict[str, bool]] = {
    "preserve_thinking": True,
    "preserved_thinking": True,
    "keep_thinking": True,
    "keep_past_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}
# A template is a program that meets what its author never saw.
REFUSALS: Final = (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError)


class NoChatTemplate(ModelUnusable):
    """The folder holds none."""


class JinjaChatTemplate:
    """A `ChatTemplate` read from a model folder."""

    def __init__(self, folder: Path) -> None:
        """Raises `ModelUnusable` when the folder has no chat template or one that cannot be rendered."""
        config = _read_json(folder / "tokenizer_config.json")
        self._source, self._tool_source = _sources(folder, config)
        self._variables = {
            name: text for name in _SPECIAL_TOKENS if (text := _token_text(config.get(name))) is not None
        }
        try:
            self._render([Turn("user", "x")], Ask())
        except REFUSALS as error:
            raise ModelUnusable(f"the chat template of {folder} cannot be rendered: {error}") from error

    @property
    def source(self) -> str:
        """Its Jinja text, as it is rendered with tools."""
        return self._tool_source

    def render(self, turns: Sequence[Turn], ask: Ask) -> str:
        """See `cluster.prompt.template.ChatTemplate`."""
        try:
            return self._render(turns, ask)
        except REFUSALS as error:
            # Templates refuse orders of roles that their model was not trained on, in their own words.
            raise InvalidRequest(f"messages: the model's chat template refuses them: {error}") from error

    def _render(self, turns: Sequence[Turn], ask: Ask) -> str:
        rendered, _ = render_jinja_template(
            conversations=[[message_of(turn, ask.form) for turn in turns]],
            tools=tools_of(ask),
            chat_template=self._tool_source if ask.tools else self._source,
            add_generation_prompt=ask.ending == "open_turn",
            continue_final_message=ask.ending == "continue_last",
            **self._variables,
            **switches_of(ask),
        )
        return str(rendered[0])


def tools_of(ask: Ask) -> list[dict[str, Any]] | None:
    """Tools as templates know them."""
    return [{"type": "function", "function": function_of(tool)} for tool in ask.tools] or None


def message_of(turn: Turn, form: Form) -> dict[str, Any]:
    """A turn as templates know it."""
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.reasoning:
        message |= dict.fromkeys(_REASONING, turn.reasoning)
    if turn.calls:
        message["tool_calls"] = [_call(call, form) for call in turn.calls]
        if form.null_content and not turn.content:
            message["content"] = None
    if form.content_parts and turn.content:
        message["content"] = [{"type": "text", "text": turn.content}]
    if turn.role == "tool":
        message |= {"tool_call_id": turn.call_id, "name": turn.name}
    return message


def _call(call: ToolCall, form: Form) -> dict[str, Any]:
    value = object_of(call.arguments) if form.arguments == "object" else None
    arguments = arguments_text(call.arguments) if value is None else value
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def switches_of(ask: Ask) -> dict[str, Any]:
    """Only what was asked for: a template's own defaults hold else."""
    switches: dict[str, Any] = dict(_KEEP_THINKING) if ask.keep_thinking else {}
    if ask.thinking != "default":
        switches |= dict.fromkeys(("enable_thinking", "thinking"), ask.thinking == "on")
    if ask.effort:
        switches["reasoning_effort"] = ask.effort
    return switches


def _sources(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    """The template, and the one for requests with tools: often the same.

    A file of its own wins over the tokenizer's settings; of several named templates `default` and `tool_use` are taken.
    """
    file = folder / "chat_template.jinja"
    named = _named(config.get("chat_template"))
    if file.is_file():
        named["default"] = file.read_text(encoding="utf-8")
    file = folder / "additional_chat_templates" / "tool_use.jinja"
    if file.is_file():
        named["tool_use"] = file.read_text(encoding="utf-8")
    if "default" not in named:
        raise NoChatTemplate(f"{folder} has no chat template")
    return named["default"], named.get("tool_use", named["default"])


def _named(template: Any) -> dict[str, str]:
    if isinstance(template, str):
        return {"default": template}
    entries = [entry for entry in template if isinstance(entry, dict)] if isinstance(template, list) else []
    return {str(entry.get("name")): str(entry["template"]) for entry in entries if "template" in entry}


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
