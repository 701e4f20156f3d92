"""Anthropic Messages: request bodies to conversations. Text only so far; all else is refused by name."""

from __future__ import annotations

from typing import Final, cast

import msgspec

from cluster.api import body as fields_of
from cluster.api.body import Block, Fields, RawMessage
from cluster.prompt.conversation import Conversation, Hints, Limits, Message, Role
from router.errors import InvalidRequest
from router.limits import MAX_HINT_CHARS

# Fields without any effect on the answer: cache hints, metadata and what betas add.
INERT: Final = frozenset(
    {"betas", "cache_control", "context_management", "diagnostics", "metadata", "safeguards", "service_tier", "speed"}
)
KNOWN: Final = fields_of.Known(INERT | {
    "max_tokens", "mcp_servers", "messages", "model", "output_config", "output_format", "stop_sequences", "stream",
    "system", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p", "container",
})  # fmt: skip


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _UserId(msgspec.Struct):
    session_id: str = ""


class _Typed(msgspec.Struct):
    type: str


class _OutputConfig(msgspec.Struct):
    format: msgspec.Raw = msgspec.Raw(b"null")


def parse_message(body: bytes) -> Conversation:
    """A `/v1/messages` body. Raises `InvalidRequest` or `RequestTooLarge`."""
    fields, ignored = fields_of.read_fields(body, KNOWN)
    max_tokens: int = fields_of.required(fields, "max_tokens", int)
    if max_tokens == 0:
        raise InvalidRequest("max_tokens: 0 (cache warming) is not supported yet")
    if max_tokens < 0:
        raise InvalidRequest("max_tokens: must be at least 1")
    return _conversation(fields, ignored, max_tokens)


def parse_count(body: bytes) -> Conversation:
    """A `/v1/messages/count_tokens` body: the same prompt, without a wish for an answer."""
    fields, ignored = fields_of.read_fields(body, KNOWN)
    return _conversation(fields, ignored, None)


def _conversation(fields: Fields, ignored: tuple[str, ...], max_tokens: int | None) -> Conversation:
    _refuse_unserved(fields)
    system: str | list[Block] = fields_of.optional(fields, "system", str | list[Block]) or []
    return Conversation(
        api="messages",
        model=fields_of.required(fields, "model", str),
        system=fields_of.text_blocks(system, "system"),
        messages=_messages(fields_of.messages_of(fields)),
        limits=_limits(fields, max_tokens),
        hints=Hints(session=_session(fields), ignored=ignored),
        stream=bool(fields_of.optional(fields, "stream", bool)),
    )


def _messages(raw: list[RawMessage]) -> tuple[Message, ...]:
    messages: list[Message] = []
    answered = False
    for i, message in enumerate(raw):
        if message.role not in ("user", "assistant", "system"):
            raise InvalidRequest(f"messages[{i}].role: `{message.role[:MAX_HINT_CHARS]}` is not a role")
        if message.content is None:
            raise InvalidRequest(f"messages[{i}].content: field required")
        blocks = fields_of.text_blocks(message.content, f"messages[{i}].content")
        answered |= message.role == "assistant" and bool(blocks)
        if answered and message.role == "system" and blocks:
            raise InvalidRequest(f"messages[{i}].role: `system` after an assistant turn is not supported yet")
        messages.append(Message(cast(Role, message.role), blocks, f"messages[{i}]"))
    return tuple(messages)


def _limits(fields: Fields, max_tokens: int | None) -> Limits:
    temperature: float | None = fields_of.optional(fields, "temperature", float)
    top_p: float | None = fields_of.optional(fields, "top_p", float)
    top_k: int | None = fields_of.optional(fields, "top_k", int)
    stops: list[str] = fields_of.optional(fields, "stop_sequences", list[str]) or []
    fields_of.within(temperature, "temperature", low=0, high=2)
    fields_of.within(top_p, "top_p", low=0, high=1)
    fields_of.within(top_k, "top_k", low=0, high=2**31 - 1)
    return Limits(
        max_tokens=max_tokens,
        temperature=fields_of.temperature_of(temperature, top_p),
        top_p=top_p or 1.0,
        top_k=top_k or 0,
        stop=fields_of.stop_sequences(stops, "stop_sequences"),
    )


def _refuse_unserved(fields: Fields) -> None:
    fields_of.refuse(fields, {"mcp_servers": ([],), "container": (), "output_format": (), "tools": ([],)})
    choice: _Typed | None = fields_of.optional(fields, "tool_choice", _Typed)
    if choice is not None and choice.type not in ("auto", "none"):
        raise InvalidRequest("tool_choice: not supported yet")
    thinking: _Typed | None = fields_of.optional(fields, "thinking", _Typed)
    if thinking is not None and thinking.type != "disabled":
        raise InvalidRequest("thinking: only `disabled` is supported so far")
    output: _OutputConfig | None = fields_of.optional(fields, "output_config", _OutputConfig)
    if output is not None and bytes(output.format) != b"null":
        raise InvalidRequest("output_config.format: not supported yet")


def _session(fields: Fields) -> str:
    """The session id that coding agents put, as JSON, into `metadata.user_id`. Anything else is no hint."""
    try:
        metadata: _Metadata = msgspec.json.decode(fields["metadata"], type=_Metadata)
        return msgspec.json.decode(metadata.user_id or "", type=_UserId).session_id[:MAX_HINT_CHARS]
    except (KeyError, msgspec.DecodeError):
        return ""
