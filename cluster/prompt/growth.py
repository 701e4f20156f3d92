"""What later turns add to a prompt, rendered without what stands before them.

Most templates write a turn by looking at it and its neighbours alone. For those, the prompt of a conversation that grew
is the old prompt and the new turns, rendered behind a stub and the last answer. Whether a template is of that kind is
shown when the model loads, against rendering in one piece; where it is not, nothing here is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from cluster.prompt.conversation import Conversation, Message, Text, Thinking, Tool, ToolCall, ToolResult
from cluster.prompt.cutting import Wanted
from cluster.prompt.template import ending_of, render
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cluster.prompt.cutting import Cutter
    from cluster.prompt.segments import Segmenter
    from cluster.prompt.template import ChatTemplate, Ending
    from cluster.prompt.turns import KnownTurn

STUB: Final = Message("user", (Text("x"),))
STUB_TURNS: Final = 2  # the stub and the last answer, in the turns of a window


class Added(NamedTuple):
    """What a window adds behind its first answer. `texts` stand around the known turns at `places` (indices of turns,
    the stub's is 0), as in `Cuts`; `rest` is what follows the window's last answer, the end of the last text."""

    texts: Sequence[str]
    places: Sequence[int]
    rest: str


class Grower:
    """Of one model. Immutable once built; safe to use from threads."""

    def __init__(self, template: ChatTemplate, segmenter: Segmenter, cutter: Cutter) -> None:
        self._template = template
        self._segmenter = segmenter
        self._cutter = cutter
        self.usable = all(self._is_proven(replace(_sample(), thinking=mode)) for mode in ("default", "on", "off"))

    def behind_answer(self, window: Conversation, known: Mapping[int, KnownTurn]) -> Added | None:
        """What `window` adds, whose first message is an answer that has been rendered before. Known turns (by index in
        `turns_of` the window behind the stub) are left out. None when it cannot be said. Linear in the window.
        """
        shown = replace(window, system=(), tools=(), messages=(STUB, *window.messages))
        answers = [i for i, message in enumerate(shown.messages) if message.role == "assistant"]
        base = self._rendered(replace(shown, messages=shown.messages[:STUB_TURNS]), "closed")
        whole = self._cut(shown, ending_of(shown), known)
        through = whole and self._through(shown, answers[-1] + 1, known, base)
        if base is None or whole is None or through is None or not whole.texts[0].startswith(base):
            return None
        same = through.places == whole.places and through.texts[:-1] == whole.texts[:-1]
        if not same or not whole.texts[-1].startswith(through.texts[-1]):
            return None
        rest = whole.texts[-1][len(through.texts[-1]) :]
        return self._checked(Added([whole.texts[0][len(base) :], *whole.texts[1:]], whole.places, rest))

    def _through(
        self, shown: Conversation, count: int, known: Mapping[int, KnownTurn], base: str | None
    ) -> _Texts | None:
        """The first `count` messages, closed; `base` are those of the stub and the first answer."""
        if count == STUB_TURNS and not known:
            return None if base is None else _Texts([base], [])
        return self._cut(replace(shown, messages=shown.messages[:count]), "closed", known)

    def _checked(self, added: Added) -> Added | None:
        """Both places at which tokens are joined must be ones where a tokenizer joins nothing."""
        joints = (added.texts[0], added.rest)
        return added if all(map(self._begins_with_atom, joints)) else None

    def _begins_with_atom(self, text: str) -> bool:
        atom = self._segmenter.atom(text)
        return atom is not None and atom.start() == 0

    def _cut(self, shown: Conversation, ending: Ending, known: Mapping[int, KnownTurn]) -> _Texts | None:
        if not known:
            text = self._rendered(shown, ending)
            return None if text is None else _Texts([text], [])
        wanted = {index: Wanted(turn.opening, bool(turn.reasoning)) for index, turn in known.items()}
        try:
            cuts = self._cutter.cut(lambda template: render(shown, template, ending=ending), wanted)
        except InvalidRequest:
            return None
        return _Texts(list(cuts.texts), list(cuts.places)) if len(cuts.places) == len(known) else None

    def _rendered(self, shown: Conversation, ending: Ending) -> str | None:
        try:
            return render(shown, self._template, ending=ending)
        except InvalidRequest:
            return None

    def _is_proven(self, whole: Conversation) -> bool:
        """Every way of growing a conversation that holds every kind of turn, against rendering it in one piece."""
        answers = [i for i, message in enumerate(whole.messages) if message.role == "assistant"]
        ends = [i for i, message in enumerate(whole.messages, start=1) if message.role == "user"]
        return all(self._grows(whole, answer, end) for answer in answers for end in ends if answer + 1 < end)

    def _grows(self, whole: Conversation, answer: int, end: int) -> bool:
        before = self._rendered(replace(whole, messages=whole.messages[: answer + 1]), "closed")
        full = self._rendered(replace(whole, messages=whole.messages[:end]), "open_turn")
        added = self.behind_answer(replace(whole, messages=whole.messages[answer:end]), {})
        return added is not None and before is not None and f"{before}{added.texts[0]}" == full


class _Texts(NamedTuple):
    texts: list[str]
    places: list[int]


def _sample() -> Conversation:
    call, more = (ToolCall(f"call{i}abcd", "read_file", '{"path": "a"}') for i in (1, 2))
    results = [ToolResult(one.id, (Text("what it holds"),)) for one in (call, more)]
    messages: list[Message] = [
        Message("user", (Text("first question"),)),
        Message("assistant", (Thinking("a thought"), Text("an answer"))),
        Message("user", (Text("second question"),)),
        Message("assistant", (Thinking("another thought"), call)),
        Message("user", (results[0],)),
        Message("assistant", (Text("both of them"), call, more)),
        Message("user", (*results, Text("and a word"))),
        Message("assistant", (Text("the last answer"),)),
        Message("user", (Text("third question"),)),
        Message("user", (Text("one more thing"),)),
        Message("assistant", (Thinking("a last thought"), Text("the end"))),
        Message("user", (Text("thanks"),)),
    ]
    tool = Tool(name="read_file", description="Reads a file.", parameters='{"type": "object"}')
    return Conversation(api="chat", model="m", system=(Text("be brief"),), messages=tuple(messages), tools=(tool,))
