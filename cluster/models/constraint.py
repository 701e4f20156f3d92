"""The form that an answer must have, in the words of the model's own family."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cluster.output.constraints import after_reasoning, either, forces_call, limits_calls, offers_calls
from router.errors import InvalidRequest
from workers.engine import Structured

if TYPE_CHECKING:
    from cluster.models.output_parser import ParserFamily
    from cluster.prompt.conversation import Conversation, OutputFormat, ToolChoice


def constraint(conversation: Conversation, prompt: bytes, parsers: ParserFamily | None) -> Structured | None:
    """The form of the answer to `prompt`, None for any. Raises `InvalidRequest` for one that this model cannot keep.

    A forced call is written as the family writes calls. Where calls are offered beside an output format, the answer is
    calls or that format. A form of the whole answer begins behind reasoning that the prompt has begun.
    """
    if forces_call(conversation):
        form = _forced(conversation, parsers)
    elif conversation.output_format is not None:
        form = _formatted(conversation, conversation.output_format, parsers)
    elif limits_calls(conversation) and parsers is not None:
        return parsers.form_of_calls(conversation)
    else:
        return None
    begun = "" if parsers is None else parsers.begun_reasoning(prompt)
    return after_reasoning(form, begun) if begun else form


def _forced(conversation: Conversation, parsers: ParserFamily | None) -> Structured:
    form = None if parsers is None else parsers.form_of_calls(conversation)
    if form is None:
        raise InvalidRequest("tool_choice: this model cannot be made to call a tool; use auto")
    return form


def _formatted(conversation: Conversation, wanted: OutputFormat, parsers: ParserFamily | None) -> Structured:
    answer = Structured(kind="json", spec=wanted.schema)
    if parsers is None or not offers_calls(conversation):
        return answer
    calls = parsers.form_of_calls(msgspec.structs.replace(conversation, tool_choice=_at_least_one(conversation)))
    return answer if calls is None or calls.kind == "json" else either(calls, answer)


def _at_least_one(conversation: Conversation) -> ToolChoice:
    return msgspec.structs.replace(conversation.tool_choice, mode="any")
