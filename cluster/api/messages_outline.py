"""Anthropic Messages: the outline of a body, and the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from cluster.api import body as fields_of
from cluster.api.messages import INERT, KNOWN, limits_of, session_of
from cluster.api.messages_blocks import RawMessage, Reader
from cluster.api.outline import Outline
from router.errors import InvalidRequest
from router.limits import MAX_IGNORED_FIELDS, MAX_MESSAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.api.body import Fields
    from cluster.prompt.conversation import Conversation

# Fields that are read anew from each request, or not at all.
_BESIDE_THE_PROMPT: Final = INERT | {
    "max_tokens", "messages", "model", "stop_sequences", "stream", "system", "temperature", "top_k", "top_p",
}  # fmt: skip
_DECIDING: Final = tuple(sorted(KNOWN.names - _BESIDE_THE_PROMPT))


def outline_of_message(body: bytes) -> Outline:
    """Of a `/v1/messages` body. Raises `ClientError`; one that is read in full may be refused for more."""
    return _outline(body, counts=False)


def outline_of_count(body: bytes) -> Outline:
    """Of a `/v1/messages/count_tokens` body."""
    return _outline(body, counts=True)


def _outline(body: bytes, *, counts: bool) -> Outline:
    fields, unknown = fields_of.read_fields(body, KNOWN)
    raws: list[msgspec.Raw] = fields_of.required(fields, "messages", list[msgspec.Raw])
    if len(raws) > MAX_MESSAGES:
        raise InvalidRequest(f"messages: more than {MAX_MESSAGES} messages")
    system = fields.get("system")
    given = system is not None and fields_of.is_given(system)
    whole = [bytes(raw) for raw in raws]
    return Outline(
        model=fields_of.required(fields, "model", str),
        system=Reader({}).system(system) if given and system is not None else (),
        parts=("messages", unknown, *(bytes(fields.get(name, b"")) for name in _DECIDING)),
        raws=whole,
        tail=lambda shell, first: _tail(fields, whole, shell, first, counts=counts),
    )


def _tail(fields: Fields, raws: Sequence[bytes], shell: Conversation, first: int, *, counts: bool) -> Conversation:
    max_tokens = None if counts else fields_of.required(fields, "max_tokens", int)
    if max_tokens is not None and max_tokens < 0:
        raise InvalidRequest("max_tokens: must be at least 0, which only fills the cache")
    reader = Reader({tool.name: tool for tool in shell.tools})
    tail: list[RawMessage] = fields_of.decode(b"[" + b",".join(raws[first:]) + b"]", list[RawMessage], "messages")
    messages = reader.messages(tail, first=first)
    if tuple(reader.tools.values()) != shell.tools:
        raise InvalidRequest("messages: tools are defined in them")
    ignored = (*shell.hints.ignored, *reader.ignored)[:MAX_IGNORED_FIELDS]
    return replace(
        shell,
        model=fields_of.required(fields, "model", str),
        system=(),
        messages=messages,
        limits=limits_of(fields, max_tokens),
        hints=replace(shell.hints, session=session_of(fields), ignored=ignored),
        stream=bool(fields_of.optional(fields, "stream", bool)),
    )
