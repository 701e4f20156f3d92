"""Anthropic Messages: request bodies to conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cluster.api import body as fields_of
from cluster.api import messages_tools
from cluster.api.messages_blocks import RawMessage, Reader
from cluster.api.tools import check_count
from cluster.prompt.conversation import Conversation, Hints, Limits
from router.errors import InvalidRequest
from router.limits import MAX_HINT_CHARS, MAX_IGNORED_FIELDS, MAX_MESSAGES

if TYPE_CHECKING:
    from cluster.api.body import Fields

# Fields without any effect on the answer: cache marks, and what is said of the client. Others are ignored and named.
INERT: Final = frozenset({"cache_control", "diagnostics", "metadata", "safeguards", "service_tier", "speed"})
KNOWN: Final = fields_of.Known(INERT | {
    "container", "context_management", "max_tokens", "mcp_servers", "messages", "model", "output_config",
    "output_format", "stop_sequences", "stream", "system", "temperature", "thinking", "tool_choice", "tools", "top_k",
    "top_p",
})  # fmt: skip


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Edit(msgspec.Struct):
    type: str
    keep: msgspec.Raw = msgspec.Raw(b"null")


class _ContextManagement(msgspec.Struct):
    edits: list[_Edit] | None = None


class _UserId(msgspec.Struct):
    session_id: str = ""


def parse_message(body: bytes) -> Conversation:
    """A `/v1/messages` body. Raises `InvalidRequest` or `RequestTooLarge`."""
    fields, ignored = fields_of.read_fields(body, KNOWN)
    max_tokens: int = fields_of.required(fields, "max_tokens", int)
    if max_tokens < 0:
        raise InvalidRequest("max_tokens: must be at least 0, which only fills the cache")
    return _conversation(fields, ignored, max_tokens)


def parse_count(body: bytes) -> Conversation:
    """A `/v1/messages/count_tokens` body: the same prompt, without a wish for an answer."""
    fields, ignored = fields_of.read_fields(body, KNOWN)
    return _conversation(fields, ignored, None)


def _conversation(fields: Fields, unknown: tuple[str, ...], max_tokens: int | None) -> Conversation:
    fields_of.refuse(fields, {"mcp_servers": ([],), "container": ()})
    offer = messages_tools.offer_of(fields)
    reader = Reader(offer.tools)
    system = fields.get("system")
    system_text = reader.system(system) if system is not None and fields_of.is_given(system) else ()
    messages = reader.messages(_raw_messages(fields))
    check_count(reader.tools, "messages: tools defined in them")
    thought = messages_tools.thought_of(fields)
    output_format, effort, unserved = messages_tools.format_of(fields)
    ignored = (*unknown, *_edits(fields), *offer.ignored, *reader.ignored, *thought.ignored, *unserved)
    return Conversation(
        api="messages",
        model=fields_of.required(fields, "model", str),
        system=system_text,
        messages=messages,
        tools=tuple(reader.tools.values()),
        tool_choice=messages_tools.choice_of(fields, reader.tools, offer.unserved),
        thinking=thought.mode,
        hide_thinking=thought.is_hidden,
        effort=effort,
        output_format=output_format,
        limits=limits_of(fields, max_tokens),
        hints=Hints(session=session_of(fields), ignored=ignored[:MAX_IGNORED_FIELDS]),
        stream=bool(fields_of.optional(fields, "stream", bool)),
    )


def _raw_messages(fields: Fields) -> list[RawMessage]:
    fields_of.check_length(fields.get("messages"), "messages", most=MAX_MESSAGES, of="messages")
    messages: list[RawMessage] = fields_of.required(fields, "messages", list[RawMessage])
    if not messages:
        raise InvalidRequest("messages: at least one message is required")
    return messages


def limits_of(fields: Fields, max_tokens: int | None) -> Limits:
    """What is asked of the sampler. Raises `InvalidRequest`."""
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


def _edits(fields: Fields) -> tuple[str, ...]:
    """Edits of the context that are not made. To keep all reasoning needs none."""
    wanted: _ContextManagement | None = fields_of.optional(fields, "context_management", _ContextManagement)
    edits = (wanted and wanted.edits) or []
    unmade = (edit.type for edit in edits if edit.type[:15] != "clear_thinking_" or b'"all"' not in bytes(edit.keep))
    return tuple(dict.fromkeys(f"context_management.edits of type {kind[:MAX_HINT_CHARS]}" for kind in unmade))


def session_of(fields: Fields) -> str:
    """The session id that coding agents put, as JSON, into `metadata.user_id`. Anything else is no hint."""
    try:
        metadata: _Metadata = msgspec.json.decode(fields["metadata"], type=_Metadata)
        return msgspec.json.decode(metadata.user_id or "", type=_UserId).session_id[:MAX_HINT_CHARS]
    except (KeyError, msgspec.DecodeError):
        return ""
