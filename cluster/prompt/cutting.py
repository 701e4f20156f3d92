"""Prompts without some turns' words: everything from the end of a turn's header to the turn's end is cut out, so that
generated tokens can take its place.

How turns end in a template is learnt when the model loads, and so is whether marks change anything outside of turns:
where they would, no turn is cut out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.prompt.conversation import Tool, ToolCall
from cluster.prompt.marks import MarkingTemplate, Marks
from cluster.prompt.template import Ask, Turn
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cluster.prompt.marks import Span
    from cluster.prompt.segments import Segmenter
    from cluster.prompt.template import ChatTemplate, Ending

_TOOL: Final = Tool(
    name="read_file",
    description="Reads a file.",
    parameters='{"type": "object", "properties": {"path": {"type": "string"}}}',
)
_ID: Final = "read4file"  # nine letters and digits, as the strictest templates want ids
_ASKED: Final = Turn("user", "First question.")
_AGAIN: Final = Turn("user", "Second question.")
_RESULT: Final = Turn("tool", "What it holds.", call_id=_ID, name=_TOOL.name)
_SAID: Final = Turn("assistant", "An answer.")
_CALLED: Final = Turn("assistant", "", calls=(ToolCall(_ID, _TOOL.name, '{"path": "notes.txt"}'),))
_BOTH: Final = _CALLED._replace(
    content="Two of them.", calls=(*_CALLED.calls, ToolCall("read5file", _TOOL.name, '{"path": "more.txt"}'))
)
_OTHER_RESULT: Final = _RESULT._replace(content="Something else.", call_id="read5file")
_THOUGHT: Final = "A thought."
_NAME_PATTERN: Final = r"[\w.:-]{1,256}"  # of ids and names, which templates may write behind the arguments


class Wanted(NamedTuple):
    """A turn that is to be cut out: how its header ends, and whether its reasoning must be rendered."""

    opening: str
    reasoning: bool


class Cuts(NamedTuple):
    """A prompt without the turns at `places` (indices of turns, in order). `texts` are what stands around them: each
    but the last ends with a turn's header, each but the first begins with a turn's end, an atom."""

    texts: Sequence[str]
    places: Sequence[int]


class Closing(NamedTuple):
    """What a template writes after a turn's last word, the atom that ends the turn, and the last atom before that."""

    text: re.Pattern[str]
    end: str
    last: str = ""


class Cutter:
    """Of one model's template. Immutable once built; safe to use from threads. `salt` is as `Marks` wants it."""

    def __init__(self, template: ChatTemplate, segmenter: Segmenter, *, salt: str) -> None:
        self.template = template
        self.segmenter = segmenter
        self._marks = Marks(salt)
        self._closings: dict[bool, Closing] = {}  # by whether a turn has calls
        self._learn()
        self._parallel_calls = self._ever_proven([_ASKED, _BOTH, _RESULT, _OTHER_RESULT])
        self._keeps_reasoning = {
            user_since: self._proven([_ASKED, _thoughtful(turn), after])
            for user_since, turn, after in ((True, _SAID, _AGAIN), (False, _CALLED, _RESULT))
        }
        self.shows_ids = _ID in (self._rendered([_ASKED, _CALLED, _RESULT]) or "")

    @property
    def usable(self) -> bool:
        """Whether any turn can be cut out."""
        return bool(self._closings)

    def ends(self, atom: str, turn: Turn, *, silent: bool) -> bool:
        """Whether a generation's last token ended the turn, which the template will end itself. One that is `silent`
        (no text) did, unless it is what the turn's last call ends with."""
        closing = self._closings[bool(turn.calls)]
        return atom == closing.end or (silent and atom != closing.last)

    def can_cut(self, turn: Turn, *, reasoning: bool, user_since: bool) -> bool:
        """Whether it is worth a try: with its reasoning or without, a user having spoken since or only tools."""
        return (
            bool(turn.calls) in self._closings
            and (len(turn.calls) < 2 or self._parallel_calls)  # else they are rendered among their results
            and (not reasoning or self._keeps_reasoning[user_since])
        )

    def cut(self, render: Callable[[ChatTemplate], str], wanted: Mapping[int, Wanted]) -> Cuts:
        """Render once, with marks, and cut out what is `wanted`, by the index of the turn.

        When less than that could be found the texts still hold marks, and only `places` are of use. Raises what
        `render` raises. O(text).
        """
        marking = MarkingTemplate(self.template, self._marks, {at: turn.reasoning for at, turn in wanted.items()})
        text = render(marking)
        texts: list[str] = []
        places: list[int] = []
        at = 0
        for index, span in self._marks.spans(text).items():
            opening = wanted[index].opening
            begin = text.rfind(opening, at, span.start)
            end = self._end(text, span, marking.marked[index])
            if begin >= 0 and end is not None:
                texts.append(text[at : begin + len(opening)])
                places.append(index)
                at = end
        return Cuts([*texts, text[at:]], places)

    def _end(self, text: str, span: Span, turn: Turn) -> int | None:
        """Where the turn's end begins; None when the turn was not rendered as it should be."""
        kinds = ("r" if turn.reasoning else "") + ("a" if turn.calls else "c")
        closing = self._closings.get(bool(turn.calls))
        # A text beside calls may be left out by the template: it is the model's own all the same.
        if closing is None or span.kinds not in {kinds, kinds.replace("a", "ca")}:
            return None
        found = closing.text.match(text, span.end, span.limit)
        return found.end() if found and text.startswith(closing.end, found.end(), span.limit) else None

    def _learn(self) -> None:
        plain, called = [_ASKED, _SAID, _AGAIN], [_ASKED, _CALLED, _RESULT]
        closing = self._plain_closing(plain)
        if closing is None:
            return
        beside = _CALLED._replace(content="Beside it.")
        for turns, ended in (
            ([*plain, _SAID._replace(content="Another."), _ASKED], closing),
            ([*called, beside, _RESULT, _CALLED, _RESULT], self._calls_closing(called, closing.end)),
        ):
            calls = turns[-1] is _RESULT
            if ended is not None:
                self._closings[calls] = ended
                if not self._ever_proven(turns):
                    del self._closings[calls]

    def _plain_closing(self, turns: Sequence[Turn]) -> Closing | None:
        followed = self._after_words(turns, "open_turn")
        end = self.segmenter.atom(followed)
        return None if end is None else Closing(re.compile(re.escape(followed[: end.start()])), end[0])

    def _calls_closing(self, turns: Sequence[Turn], plain_end: str) -> Closing | None:
        """Some templates end no turn: the header of the next one does, and so it can be told from the atoms that a
        call ends with only by looking at a prompt that ends here."""
        followed, closed = self._after_words(turns, "open_turn"), self._after_words(turns[:2], "closed")
        at = closed.find(plain_end)
        text = closed.rstrip("\n") if at < 0 else closed[:at]
        end = self.segmenter.atom(followed[len(text) :])
        if not text or not followed.startswith(text) or end is None or end.start() > 0:
            return None
        pattern = re.escape(text)
        for name in (_ID, _TOOL.name):
            pattern = pattern.replace(re.escape(name), _NAME_PATTERN)
        return Closing(re.compile(pattern), end[0], self._last_atom(text))

    def _after_words(self, turns: Sequence[Turn], ending: Ending) -> str:
        """What is rendered after the last word of the second turn; empty when it could not be rendered."""
        text = self._rendered([turns[0], self._marks.on(turns[1], 1, reasoning=False), *turns[2:]], ending) or ""
        span = self._marks.spans(text).get(1)
        return "" if span is None else text[span.end :]

    def _ever_proven(self, turns: Sequence[Turn]) -> bool:
        """With reasoning or without: often the header of one of them only is what generations begin with."""
        return self._proven(turns) or self._proven([_thoughtful(turn) for turn in turns])

    def _proven(self, turns: Sequence[Turn]) -> bool:
        """Whether every turn of the assistant can be cut out of this, alone and with the others: what stands before it
        is then the prompt that it answered, and everything else is as it is beside the turn's own words."""
        whole = self._rendered(turns)
        prompts = {i: self._rendered(turns[:i]) for i, turn in enumerate(turns) if turn.role == "assistant"}
        wanted = {i: Wanted(self._opening(text or ""), bool(turns[i].reasoning)) for i, text in prompts.items()}
        if whole is None or not all(turn.opening for turn in wanted.values()):
            return False

        def cut_out(places: Mapping[int, Wanted]) -> Cuts:
            return self.cut(lambda template: template.render(turns, _ask()), places)

        if len(cut_out(wanted).places) < len(wanted):
            return False
        for index, turn in wanted.items():
            before, *after = cut_out({index: turn}).texts
            if before != prompts[index] or not whole.startswith(before) or not whole.endswith("".join(after)):
                return False
            others = [other.content for i, other in enumerate(turns) if i != index and other.content]
            if any((before + "".join(after)).count(said) < whole.count(said) for said in others):
                return False
        return True

    def _opening(self, text: str) -> str:
        """From the last atom on."""
        atom = self._last_atom(text)
        return text[text.rfind(atom) :] if atom else ""

    def _last_atom(self, text: str) -> str:
        return max(self.segmenter.atom_tokens(), key=text.rfind) if self.segmenter.atom(text) else ""

    def _rendered(self, turns: Sequence[Turn], ending: Ending = "open_turn") -> str | None:
        try:
            return self.template.render(turns, _ask(ending))
        except InvalidRequest:
            return None


def _thoughtful(turn: Turn) -> Turn:
    return turn._replace(reasoning=_THOUGHT) if turn.role == "assistant" else turn


def _ask(ending: Ending = "open_turn") -> Ask:
    return Ask(ending, (_TOOL,))
