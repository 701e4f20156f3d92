"""OpenAI Chat Completions: request bodies to conversations. Text only so far; all else is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import msgspec

from cluster.api import body as fields_of
from cluster.prompt.conversation import Conversation, Hints, Limits, Message, Role, Text
from router.errors import InvalidRequest
from router.limits import MAX_HINT_CHARS, MAX_IGNORED_FIELDS

if TYPE_CHECKING:
    from cluster.api.body import Fields, RawMessage

# Fields that would change the answer, with the values that ask for nothing.
UNSERVED: Final = {
    "audio": (), "best_of": (1,), "documents": ([],), "echo": (False,), "frequency_penalty": (0, 0.0),
    "function_call": ("auto", "none"), "functions": ([],), "length_penalty": (1, 1.0), "logit_bias": ({},),
    "logprob_token_ids": ([],), "logprobs": (False,), "min_p": (0, 0.0), "modalities": (["text"],), "n": (1,),
    "presence_penalty": (0, 0.0), "repetition_penalty": (1, 1.0), "response_format": ({"type": "text"},),
    "thinking_token_budget": (), "tool_choice": ("auto", "none"), "tools": ([],), "top_logprobs": (0,),
    "use_beam_search": (False,), "web_search_options": (),
}  # fmt: skip
# Fields without any effect on the answer. (Wishes about its style, as `reasoning_effort`, are reported as ignored.)
INERT: Final = frozenset(
    {"metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options",
     "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user"}
)  # fmt: skip
KNOWN: Final = fields_of.Known(
    INERT
    | UNSERVED.keys()
    | {
        "max_completion_tokens", "max_tokens", "messages", "model", "seed", "stop", "stream", "stream_options",
        "temperature", "top_k", "top_p",
    }
)  # fmt: skip
_INSTRUCTING = ("system", "developer")
# What a message may hold beside its text, and templates may show to a model.
_UNSERVED_PARTS: Final = ("function_call", "audio", "reasoning", "reasoning_content", "refusal")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


def parse_chat(body: bytes) -> Conversation:
    """A `/v1/chat/completions` body. Raises `InvalidRequest` or `RequestTooLarge`."""
    fields, ignored = fields_of.read_fields(body, KNOWN)
    fields_of.refuse(fields, UNSERVED)
    raw = fields_of.messages_of(fields)
    system, messages = _split(raw)
    if any(fields_of.asks_for_something(message.name) for message in raw):
        ignored = ("messages[].name", *ignored)[:MAX_IGNORED_FIELDS]
    options: _StreamOptions | None = fields_of.optional(fields, "stream_options", _StreamOptions)
    return Conversation(
        api="chat",
        model=fields_of.required(fields, "model", str),
        system=system,
        messages=messages,
        limits=_limits(fields),
        hints=Hints(session=_session(fields), ignored=ignored),
        stream=bool(fields_of.optional(fields, "stream", bool)),
        stream_usage=bool(options and options.include_usage),
    )


def _split(raw: list[RawMessage]) -> tuple[tuple[Text, ...], tuple[Message, ...]]:
    """The leading system and developer messages, and the rest."""
    system: list[Text] = []
    messages: list[Message] = []
    answered = False
    for i, message in enumerate(raw):
        blocks = _blocks(message, i)
        answered |= message.role == "assistant" and bool(blocks)
        if message.role in _INSTRUCTING and not messages:
            system += blocks
        elif message.role in _INSTRUCTING and answered:
            raise InvalidRequest(f"messages[{i}].role: `{message.role}` after an assistant turn is not supported yet")
        else:
            role = "system" if message.role in _INSTRUCTING else message.role
            messages.append(Message(cast(Role, role), blocks, f"messages[{i}]"))
    return tuple(system), tuple(messages)


def _blocks(message: RawMessage, i: int) -> tuple[Text, ...]:
    if message.role in ("tool", "function"):
        raise InvalidRequest(f"messages[{i}].role: `{message.role}` is not supported yet")
    if message.role not in ("user", "assistant", *_INSTRUCTING):
        raise InvalidRequest(f"messages[{i}].role: `{message.role[:MAX_HINT_CHARS]}` is not a role")
    if message.tool_calls:
        raise InvalidRequest(f"messages[{i}].tool_calls: not supported yet")
    for part in _UNSERVED_PARTS:
        if fields_of.asks_for_something(getattr(message, part)):
            raise InvalidRequest(f"messages[{i}].{part}: not supported yet")
    if message.content is None:
        raise InvalidRequest(f"messages[{i}].content: field required")
    return fields_of.text_blocks(message.content, f"messages[{i}].content")


def _limits(fields: Fields) -> Limits:
    temperature: float | None = fields_of.optional(fields, "temperature", float)
    top_p: float | None = fields_of.optional(fields, "top_p", float)
    top_k: int | None = fields_of.optional(fields, "top_k", int)
    seed: int | None = fields_of.optional(fields, "seed", int)
    stop: str | list[str] = fields_of.optional(fields, "stop", str | list[str]) or []
    fields_of.within(temperature, "temperature", low=0, high=2)
    fields_of.within(top_p, "top_p", low=0, high=1)
    fields_of.within(top_k, "top_k", low=-1, high=2**31 - 1)
    fields_of.within(seed, "seed", low=-(2**63), high=2**63 - 1)
    return Limits(
        max_tokens=_max_tokens(fields),
        temperature=fields_of.temperature_of(temperature, top_p),
        top_p=top_p or 1.0,
        top_k=max(top_k or 0, 0),
        seed=seed,
        stop=fields_of.stop_sequences([stop] if isinstance(stop, str) else stop, "stop"),
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


def _session(fields: Fields) -> str:
    try:
        return msgspec.json.decode(fields["prompt_cache_key"], type=str)[:MAX_HINT_CHARS]
    except (KeyError, msgspec.DecodeError):
        return ""
