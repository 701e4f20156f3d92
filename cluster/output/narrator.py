"""From what a family's parser makes of a generation to well-formed events, with nothing lost that the parser drops.

The narrator sees the generated text beside what the parser said of it. Text that the parser has not said yet is kept as
the source of what is going on: of a call that never becomes one, or of words that were swallowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.output.arguments import Arguments
from cluster.output.events import CallArguments, CallBroken, CallEnd, CallStart
from cluster.output.framing import Framing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.output.events import Event
    from cluster.output.families import CallMarks

_CLOSERS: Final = "}]),;` \t\r\n"  # what may stand between the end of a call's arguments and the end of the call


class CallPiece(NamedTuple):
    """What a parser says of one call: its name once, and more of its arguments. `number` tells calls apart."""

    number: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class Parsed(NamedTuple):
    """What a parser says next."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallPiece, ...] = ()


class _Call:
    """A call that has not ended. `source` is all that was generated for it, `ready` what of its arguments may leave."""

    def __init__(self, piece: CallPiece, source: str) -> None:
        self.start = CallStart(piece.id, piece.name)
        self.source = source
        self.arguments = Arguments()
        self.ready = ""
        self.announced = False


class Narrator:
    """Tells one answer. `marks` stand around calls (None: not known, then only calls are watched); `framing` are all
    texts that the parser takes away: marks of reasoning and of calls.

    A call is announced with its first argument and ended with its last brace. One that cannot be completed comes as
    the text of its source, after `CallBroken` if it was announced. Of several calls at once the earliest is told first.
    """

    def __init__(self, marks: CallMarks | None, framing: Sequence[str]) -> None:
        self._marks = marks
        self._framing_marks = tuple(sorted({*framing, *(marks.opens if marks else ())}, key=len, reverse=True))
        self._words = Framing()
        self._calls: list[_Call] = []
        self._by_number: dict[int, _Call] = {}
        self._unsaid = ""
        self._called = False  # in this region of calls
        self._has_called = False
        self._recent = ""  # the beginning of a closing mark may be in it

    @property
    def is_thinking(self) -> bool:
        """Whether the last words were reasoning."""
        return self._words.is_thinking

    @property
    def is_settled(self) -> bool:
        """Whether the parser has said all that was generated, and no call is near."""
        return not (self._unsaid or self._calls or self._called)

    def cut(self, text: str) -> int:
        """Where a region of calls ends in the text that comes next, 0 if it does not: parse up to there first, then
        `end_region`."""
        if self._marks is None or not self._marks.close or not (self._called or self._calls or self._opened()):
            return 0
        seen = self._recent + text
        at = seen.find(self._marks.close)
        return 0 if at < 0 else at + len(self._marks.close) - len(self._recent)

    def tell(self, text: str, parsed: Parsed) -> list[Event]:
        """Generated text, and what the parser said when it had been given it."""
        events: list[Event] = []
        self._hold(text)
        if parsed.reasoning:
            self._say_unsaid(parsed.reasoning, None)
            events += self._words.think(parsed.reasoning)
        if parsed.content and not self._is_inside():
            self._break_calls(events)
            self._say_unsaid(parsed.content, events)
            events += self._words.say(parsed.content)
        for piece in parsed.calls:
            self._take(piece, events)
        self._flush(events)
        self._has_called |= self._called
        return events

    def reopened(self, events: list[Event]) -> str:
        """When a region begins that the parser must not take for more of the last one: the text it begins with. Words
        that stood between go to `events`."""
        if self._marks is None or not self._marks.holds_one or not self._called or self._calls:
            return ""
        at = self._unsaid.find(self._marks.opens[0])
        if at < 0:
            return ""
        between, self._unsaid = self._unsaid[:at], self._unsaid[at:]
        events += self._words.say(self._behind_call(between))
        self._called = False
        self._by_number.clear()
        return self._unsaid

    def end_region(self) -> list[Event]:
        """The calls' closing mark has come: what has not become a call by now is none."""
        events: list[Event] = []
        self._break_calls(events)
        if self._opened():
            events += self._words.quote(self._unsaid)
        elif not self._called:
            events += self._words.say(self._wording(self._unsaid))
        self._unsaid = self._recent = ""
        self._called = False
        return events

    def finish(self) -> list[Event]:
        """The generation has ended."""
        events: list[Event] = []
        self._break_calls(events)
        rest = self._unsaid
        if self._opened():
            events += self._words.quote(rest)
        elif self._called and self._marks is not None:
            events += self._words.say(self._behind_call(rest))
        elif self._marks is not None or not self._has_called:
            lost = self._wording(rest)
            events += self._words.think(lost) if self.is_thinking else self._words.say(lost)
        self._unsaid = ""
        return events + self._words.finish()

    def give_up(self, text: str) -> list[Event]:
        """The parser failed: everything it had not said, and `text`, as it stands. From here on `say`."""
        self._hold(text)
        events: list[Event] = []
        self._break_calls(events)
        events += self._words.quote(self._unsaid)
        self._unsaid = ""
        return events

    def say(self, text: str) -> list[Event]:
        """Text that no parser has seen."""
        return self._words.quote(text)

    def _hold(self, text: str) -> None:
        if self._calls:
            self._calls[-1].source += text
        else:
            self._unsaid += text
        if self._marks is not None and self._marks.close:
            self._recent = (self._recent + text)[-(len(self._marks.close) - 1) :]

    def _is_inside(self) -> bool:
        """Behind a call whose region has not been closed yet: what parsers take for words there is mostly none."""
        return self._called and self._marks is not None and bool(self._marks.close)

    def _opened(self) -> bool:
        return self._marks is not None and any(mark in self._unsaid for mark in self._marks.opens)

    def _say_unsaid(self, said: str, events: list[Event] | None) -> None:
        """The parser has said this much of what was held. What it left out on the way goes to `events`, unless it comes
        before reasoning: there it is a heading."""
        at = 0 if self._unsaid.startswith(said) else self._unsaid.rfind(said)
        if self._marks is None or at < 0:
            self._unsaid = ""
            return
        skipped, self._unsaid = self._unsaid[:at], self._unsaid[at + len(said) :]
        if events is None:
            return
        if any(mark in skipped for mark in self._marks.opens):
            events += self._words.quote(skipped)
        elif self._called:
            events += self._words.say(self._behind_call(skipped))
            self._called = False
        else:
            events += self._words.say(self._wording(skipped))

    def _wording(self, text: str) -> str:
        """Without marks; nothing if nothing else is left."""
        for mark in self._framing_marks:
            text = text.replace(mark, "")
        return text if text.strip() else ""

    def _behind_call(self, text: str) -> str:
        """What was said behind a call whose region never closed."""
        rest = self._wording(text.lstrip(_CLOSERS))
        close = self._marks.close if self._marks else ""
        return "" if close.startswith(rest.strip()) else rest

    def _take(self, piece: CallPiece, events: list[Event]) -> None:
        call = self._by_number.get(piece.number)
        if call is None:
            if not piece.name:
                return
            call = _Call(piece, self._source_of_new(events))
            self._calls.append(call)
            self._by_number[piece.number] = call
            self._called = True
        call.ready += call.arguments.push(piece.arguments)

    def _source_of_new(self, events: list[Event]) -> str:
        """What was generated for a call that begins, as far as it can be told from what was before."""
        opens = self._marks.opens if self._marks else ()
        if self._calls:
            before = self._calls[-1]
            at = max((before.source.rfind(mark) for mark in opens), default=-1)
            if at <= 0:
                return ""
            source, before.source = before.source[at:], before.source[:at]
            return source
        at = min((at for mark in opens if (at := self._unsaid.find(mark)) >= 0), default=0)
        skipped, source = self._unsaid[:at], self._unsaid[at:]
        self._unsaid = ""
        if not self._called:
            events += self._words.say(self._wording(skipped))
        return source

    def _flush(self, events: list[Event]) -> None:
        while self._calls:
            call = self._calls[0]
            state = call.arguments.state
            if state == "broken" and len(self._calls) == 1:
                return  # until its end has come, its source is not whole
            if state == "broken":
                self._break(call, events)
            else:
                self._advance(call, events)
                if state == "open":
                    return
                events.append(CallEnd())
            self._calls.pop(0)
            if state == "complete" and not self._calls:
                self._unsaid = "" if self._marks is None or self._marks.close else call.arguments.surplus

    def _advance(self, call: _Call, events: list[Event]) -> None:
        if not call.ready:
            return
        if not call.announced:
            call.announced = True
            self._words.end_block()
            events.append(call.start)
        events.append(CallArguments(call.ready))
        call.ready = ""

    def _break(self, call: _Call, events: list[Event]) -> None:
        if call.announced:
            events.append(CallBroken())
        events += self._words.quote(call.source)

    def _break_calls(self, events: list[Event]) -> None:
        """No more will be said of these calls."""
        for call in self._calls:
            if call.arguments.state == "complete":
                self._advance(call, events)
                events.append(CallEnd())
            else:
                self._break(call, events)
        self._calls.clear()
        self._by_number.clear()
