"""OpenAI Chat Completions: request bodies to conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster.api import body as fields_of
from cluster.api import sampling
from cluster.api.chat_messages import turns_of
from cluster.api.chat_tools import TOOL_FIELDS, format_of, tools_of
from cluster.prompt.conversation import Conversation, Hints
from router.errors import InvalidRequest
from router.limits import MAX_IGNORED_FIELDS, MAX_TOP_LOGPROBS

if TYPE_CHECKING:
    from cluster.api.body import Fields

# Fields that would change the answer, with the values that ask for nothing.
UNSERVED: Final = sampling.UNSERVED | {
    "audio": (), "documents": ([],), "echo": (False,), "logprob_token_ids": ([],), "modalities": (["text"],),
    "thinking_token_budget": (), "web_search_options": (),
}  # fmt: skip
KNOWN: Final = fields_of.Known(
    sampling.INERT
    | sampling.SAMPLING_FIELDS
    | TOOL_FIELDS
    | UNSERVED.keys()
    | {
        "logprobs", "max_completion_tokens", "max_tokens", "messages", "model", "prediction", "reasoning_effort",
        "response_format", "stream", "stream_options", "top_logprobs",
    }
)  # fmt: skip


def parse_chat(body: bytes) -> Conversation:
    """A `/v1/chat/completions` body. Raises `InvalidRequest` or `RequestTooLarge`."""
    fields, unknown = fields_of.read_fields(body, KNOWN)
    fields_of.refuse(fields, UNSERVED)
    turns, tools = turns_of(fields), tools_of(fields)
    effort: str = fields_of.optional(fields, "reasoning_effort", str) or ""
    odd = () if effort in sampling.EFFORTS | {"none", ""} else ("reasoning_effort",)
    stream, stream_usage = sampling.streaming_of(fields)
    return Conversation(
        api="chat",
        model=fields_of.required(fields, "model", str),
        system=turns.system,
        messages=turns.messages,
        tools=tools.tools,
        tool_choice=tools.choice,
        thinking="off" if effort == "none" else "default",
        effort=effort if effort in sampling.EFFORTS else "",
        output_format=format_of(fields),
        limits=sampling.limits_of(fields, max_tokens=_max_tokens(fields), logprobs=_logprobs(fields)),
        hints=Hints(
            session=sampling.session_of(fields),
            ignored=(*turns.ignored, *tools.ignored, *odd, *unknown)[:MAX_IGNORED_FIELDS],
        ),
        stream=stream,
        stream_usage=stream_usage,
    )


def _max_tokens(fields: Fields) -> int | None:
    """`max_completion_tokens` replaced `max_tokens`; the newer name wins."""
    for name in ("max_completion_tokens", "max_tokens"):
        value: int | None = fields_of.optional(fields, name, int)
        if value is not None:
            if value < 1:
                raise InvalidRequest(f"{name}: must be at least 1")
            return value
    return None


def _logprobs(fields: Fields) -> int | None:
    """How many alternatives of each token, None for no log probabilities at all."""
    wanted: bool | None = fields_of.optional(fields, "logprobs", bool)
    alternatives: int | None = fields_of.optional(fields, "top_logprobs", int)
    fields_of.within(alternatives, "top_logprobs", low=0, high=MAX_TOP_LOGPROBS)
    if wanted:
        return alternatives or 0
    if alternatives:
        raise InvalidRequest("top_logprobs: needs `logprobs` to be true")
    return None
