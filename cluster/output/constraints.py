"""Which answers must have a form, and what that means for reasoning."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cluster.prompt.conversation import Change
from workers.engine import Structured

if TYPE_CHECKING:
    from cluster.prompt.conversation import Conversation

RULE: Final = "direct_answer"


def offers_calls(conversation: Conversation) -> bool:
    """Whether an answer may call."""
    return bool(conversation.tools) and conversation.tool_choice.mode != "none"


def forces_call(conversation: Conversation) -> bool:
    """Whether an answer must call."""
    return bool(conversation.tools) and conversation.tool_choice.mode in ("any", "tool")


def limits_calls(conversation: Conversation) -> bool:
    """Whether calls must have a form if there are any: at most one, or arguments that fit their schema."""
    one = not conversation.tool_choice.parallel
    return offers_calls(conversation) and (one or any(tool.strict for tool in conversation.tools))


def direct(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """An answer whose whole text must have a form begins with that form: its prompt asks for no reasoning."""
    formed = conversation.output_format is not None or forces_call(conversation)
    if not formed or conversation.thinking == "off":
        return conversation, ()
    change = Change(RULE, "thinking", conversation.thinking, "off")
    return msgspec.structs.replace(conversation, thinking="off"), (change,)


def after_reasoning(form: Structured, think_end: str) -> Structured:
    """The same form behind reasoning that the prompt has already begun."""
    reasoning = {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": think_end}
    return _tag({"type": "sequence", "elements": [reasoning, _format(form)]})


def either(first: Structured, second: Structured) -> Structured:
    """One of two forms."""
    return _tag({"type": "or", "elements": [_format(first), _format(second)]})


def _format(form: Structured) -> Any:
    spec = json.loads(form.spec)
    return {"type": "json_schema", "json_schema": spec} if form.kind == "json" else spec["format"]


def _tag(inner: dict[str, Any]) -> Structured:
    return Structured(kind="structural_tag", spec=json.dumps({"type": "structural_tag", "format": inner}))
