"""A Responses answer as events: items that are added, grow and are done, numbered throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.api import sse
from cluster.api.responses_output import reasoning_part, scores_within, text_part
from cluster.output.events import CallArguments, CallBroken, CallEnd, CallStart, TextDelta, ThinkingDelta
from cluster.prompt.conversation import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.api.responses_output import Items, Status
    from cluster.output.assembly import ScoredToken
    from cluster.output.events import Event


class _Growing(NamedTuple):
    """Text or reasoning that goes on."""

    kind: type[TextDelta | ThinkingDelta]
    place: int
    item_id: str
    parts: list[str]
    head: bytes  # of each delta's event, up to its number
    frame: sse.Frame  # of the rest


class _Calling(NamedTuple):
    """A call that goes on; `place` is None until a first argument has shown that it is one."""

    start: CallStart
    place: int | None
    parts: list[str]


class ItemStream:
    """Turns events to Responses events. `output` are the items that are done and count.

    A call that breaks after it was announced is done as `incomplete`, its arguments no JSON, and does not count.
    Free-form calls are said when they are complete: their input is inside of JSON until then.
    """

    def __init__(self, items: Items) -> None:
        self._items = items
        self._sequence = 0
        self._next_place = 0
        self._text: _Growing | None = None
        self._call: _Calling | None = None
        self._scores: list[ScoredToken] = []
        self._scored = 0
        self.output: list[dict[str, Any]] = []

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event, with the next number."""
        numbered = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return sse.named(numbered)

    def score(self, scores: tuple[ScoredToken, ...]) -> None:
        """Tokens of events to come; their text's item has them when it is done."""
        self._scores += scores

    def say(self, event: Event) -> Iterator[bytes]:
        """What is new."""
        match event:
            case TextDelta(text) | ThinkingDelta(text):
                yield from self._grow(type(event), text)
            case CallStart():
                yield from self.close("completed")
                self._call = _Calling(event, None, [])
            case CallArguments(text):
                yield from self._argue(text)
            case CallEnd():
                yield from self._end_call()
            case CallBroken():
                yield from self._drop_call()

    def close(self, status: Status) -> Iterator[bytes]:
        """Text or reasoning has ended, if there was any open."""
        if self._text is None:
            return
        kind, place, _, parts, *_ = self._text
        text = "".join(parts)
        scores, self._scored = scores_within(text, self._scores, self._scored)
        if kind is TextDelta:
            part = text_part(text, scores)
            item = self._items.message(place, status, [part])
            yield self._part("response.output_text.done", text=text, logprobs=part["logprobs"])
        else:
            part, item = reasoning_part(text), self._items.reasoning(place, status, text)
            yield self._part("response.reasoning_text.done", text=text)
        yield self._part("response.content_part.done", part=part)
        yield self._done(item, place)
        self._text = None

    def _grow(self, kind: type[TextDelta | ThinkingDelta], text: str) -> Iterator[bytes]:
        if self._text is None or self._text.kind is not kind:
            yield from self.close("completed")
            yield from self._open(kind)
        assert self._text is not None
        self._text.parts.append(text)
        self._sequence += 1
        yield b"%b%d%b" % (self._text.head, self._sequence - 1, self._text.frame.filled(text))

    def _open(self, kind: type[TextDelta | ThinkingDelta]) -> Iterator[bytes]:
        place = self._take_place()
        if kind is TextDelta:
            item, part = self._items.message(place, "in_progress", []), text_part("")
        else:
            item, part = self._items.reasoning(place, "in_progress", ""), reasoning_part("")
        self._text = _Growing(kind, place, item["id"], [], *_delta_of(kind, place, item["id"]))
        yield self.event("response.output_item.added", output_index=place, item=item)
        yield self._part("response.content_part.added", part=part)

    def _argue(self, text: str) -> Iterator[bytes]:
        assert self._call is not None
        self._call.parts.append(text)
        if not text or self._items.is_free_form(self._call.start.name):
            return
        yield from self._announce()
        yield self._of_call("response.function_call_arguments.delta", delta=text)

    def _announce(self) -> Iterator[bytes]:
        assert self._call is not None
        if self._call.place is not None:
            return
        self._call = self._call._replace(place=self._take_place())
        item = self._called("in_progress", "")
        yield self.event("response.output_item.added", output_index=self._call.place, item=item)

    def _end_call(self) -> Iterator[bytes]:
        yield from self._announce()
        assert self._call is not None
        assert self._call.place is not None
        arguments = "".join(self._call.parts)
        item = self._called("completed", arguments)
        if "input" in item:
            yield self._of_call("response.custom_tool_call_input.delta", delta=item["input"])
            yield self._of_call("response.custom_tool_call_input.done", input=item["input"])
        else:
            yield self._of_call("response.function_call_arguments.done", name=item["name"], arguments=arguments)
        yield self._done(item, self._call.place)
        self._call = None

    def _drop_call(self) -> Iterator[bytes]:
        assert self._call is not None
        if self._call.place is not None:
            item = self._called("incomplete", "".join(self._call.parts))
            yield self.event("response.output_item.done", output_index=self._call.place, item=item)
        self._call = None

    def _called(self, status: Status, arguments: str) -> dict[str, Any]:
        assert self._call is not None
        assert self._call.place is not None
        (call_id, name), place = (self._call.start.id, self._call.start.name), self._call.place
        return self._items.call(ToolCall(call_id, name, arguments), place, status)

    def _take_place(self) -> int:
        self._next_place += 1
        return self._next_place - 1

    def _part(self, kind: str, **fields: Any) -> bytes:
        assert self._text is not None
        return self.event(kind, item_id=self._text.item_id, output_index=self._text.place, content_index=0, **fields)

    def _of_call(self, kind: str, **fields: Any) -> bytes:
        assert self._call is not None
        assert self._call.place is not None
        item_id = self._items.call_id(self._call.start.name, self._call.place)
        return self.event(kind, item_id=item_id, output_index=self._call.place, **fields)

    def _done(self, item: dict[str, Any], place: int) -> bytes:
        self.output.append(item)
        return self.event("response.output_item.done", output_index=place, item=item)


def _delta_of(kind: type[TextDelta | ThinkingDelta], place: int, item_id: str) -> tuple[bytes, sse.Frame]:
    """What deltas of one item have in common, before and behind their number."""
    where = {"item_id": item_id, "output_index": place, "content_index": 0, "delta": sse.HOLE}
    if kind is TextDelta:
        event = {"type": "response.output_text.delta", "sequence_number": 0, **where, "logprobs": []}
    else:
        event = {"type": "response.reasoning_text.delta", "sequence_number": 0, **where}
    head, number, rest = sse.named(event).partition(b'"sequence_number":')
    return head + number, sse.frame(rest.removeprefix(b"0"))
