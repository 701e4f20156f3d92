"""What an answer says, as events in its own order, and the blocks they add up to.

Parsers produce events, replies say them. A stream of events is well-formed: deltas of one kind make one block, a call
is started before its arguments come and ended (or broken) before anything else follows.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from cluster.prompt.conversation import Text, Thinking, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class TextDelta(msgspec.Struct, frozen=True):
    """More of the answer's text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    """More of the reasoning."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call begins. `id` is unique in the answer and as the model's family writes ids."""

    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of the running call's arguments, JSON text."""

    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """The running call is complete; its arguments are a JSON object."""


class CallBroken(msgspec.Struct, frozen=True):
    """The running call can no longer become JSON and is void; its source follows as text."""


Event = TextDelta | ThinkingDelta | CallStart | CallArguments | CallEnd | CallBroken
Said = Text | Thinking | ToolCall


def merged(events: Sequence[Event]) -> tuple[Event, ...]:
    """The same, deltas of one kind that follow each other as one."""
    if len(events) < 2:
        return tuple(events)
    said: list[Event] = []
    for kind, run in groupby(events, type):
        if kind is TextDelta or kind is ThinkingDelta or kind is CallArguments:
            said.append(kind("".join([event.text for event in run if isinstance(event, kind)])))
        else:
            said += run
    return tuple(said)


def blocks_of(events: Iterable[Event]) -> tuple[Said, ...]:
    """The blocks that well-formed events add up to; a broken call leaves none. O(text)."""
    blocks: list[Said] = []
    parts: list[str] = []
    call: CallStart | None = None
    kind: type[TextDelta | ThinkingDelta] | None = None

    def flush() -> None:
        if parts and kind is not None:
            blocks.append((Text if kind is TextDelta else Thinking)("".join(parts)))
        parts.clear()

    for event in events:
        match event:
            case TextDelta(text) | ThinkingDelta(text):
                if type(event) is not kind:
                    flush()
                    kind = type(event)
                parts.append(text)
            case CallStart():
                flush()
                kind, call = None, event
            case CallArguments(text):
                parts.append(text)
            case CallEnd():
                assert call is not None
                blocks.append(ToolCall(call.id, call.name, "".join(parts)))
                parts.clear()
            case CallBroken():
                parts.clear()
    flush()
    return tuple(blocks)
