"""Special tokens that a client's text spells out stay text: nobody can end a turn or begin one by writing its mark.

People work on chat templates with coding agents, and pages that agents read may be hostile. Encoded as it stands, a
quoted `<|im_end|>` would be the token itself. So before a template sees a text, each such mark in it gets a seam: a
character at which prompts are cut when they are encoded (`cluster.prompt.segments`), and which then is gone. The model
reads the same letters, as letters.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cluster.prompt.json_text import arguments_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cluster.prompt.conversation import Tool, ToolCall
    from cluster.prompt.template import Turn

SEAM: Final = "\ue83a"  # of a private use area: no text needs it in this place


class LiteralMarks:
    """Of one model. `marks` are texts of tokens that only templates may write. Immutable."""

    def __init__(self, marks: Iterable[str] = ()) -> None:
        whole = sorted({mark for mark in marks if len(mark) > 1}, key=len, reverse=True)
        pairs = ((mark, _seamed(mark, whole)) for mark in whole)
        self._seamed = {mark: seamed for mark, seamed in pairs if seamed is not None}
        self._whole = _any_of(self._seamed)
        self._begins = {mark[:2] for mark in self._seamed}  # looked for first: it is the faster search by far
        self._joined = {seamed: mark for mark, seamed in self._seamed.items()}
        self._seams = _any_of(self._joined)

    @property
    def seamed(self) -> Iterable[str]:
        """How marks look in prompts where they are text."""
        return self._joined

    def text(self, text: str) -> str:
        """`text` with a seam in every mark. Idempotent, O(text)."""
        for begin in self._begins:
            if begin in text:
                return self._whole.sub(lambda mark: self._seamed[mark[0]], text)
        return text

    def turn(self, turn: Turn) -> Turn:
        """All that a client can write into a turn."""
        content, reasoning, call_id, name = map(self.text, (turn.content, turn.reasoning, turn.call_id, turn.name))
        calls = tuple(map(self._call, turn.calls)) if turn.calls else ()
        return turn._replace(content=content, reasoning=reasoning, calls=calls, call_id=call_id, name=name)

    def tool(self, tool: Tool) -> Tool:
        """All of a tool."""
        name, description = self.text(tool.name), self.text(tool.description)
        return replace(tool, name=name, description=description, parameters=self._json(tool.parameters))

    def shown(self, prompt: str) -> str:
        """A prompt as people read it: without seams."""
        return self._seams.sub(lambda seamed: self._joined[seamed[0]], prompt) if SEAM in prompt else prompt

    def _call(self, call: ToolCall) -> ToolCall:
        return replace(call, id=self.text(call.id), name=self.text(call.name), arguments=self._json(call.arguments))

    def _json(self, text: str) -> str:
        """Escapes may hide a mark until a template writes the value."""
        plain = arguments_text(text) if "\\" in text else text
        seamed = self.text(plain)
        return text if seamed == plain else seamed


def _seamed(mark: str, marks: Sequence[str]) -> str | None:
    """`mark` with a seam where neither side holds a mark; None where there is no such place."""
    for at in range(1, len(mark)):
        if not any(other in part for other in marks for part in (mark[:at], mark[at:])):
            return f"{mark[:at]}{SEAM}{mark[at:]}"
    return None


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")


NO_MARKS: Final = LiteralMarks()
