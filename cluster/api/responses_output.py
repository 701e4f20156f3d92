"""Items of a Responses answer, as they stand in it at any time of their life."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from cluster.api.chunks import finite, shown
from cluster.api.responses_items import sealed
from cluster.api.responses_tools import own_name
from cluster.prompt.conversation import Text, Thinking, Tool, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cluster.output.assembly import ScoredToken
    from cluster.output.events import Said

Status = Literal["in_progress", "completed", "incomplete"]
_NO_TOOL: Final = Tool(name="")


class _FreeForm(msgspec.Struct):
    input: str


class Items:
    """Makes the items of one answer. `index` is an item's place in it, and makes its id unique."""

    def __init__(self, suffix: str, tools: Iterable[Tool], *, seal: bool) -> None:
        self._suffix = suffix
        self._tools = {tool.name: tool for tool in tools}
        self._seal = seal

    def of(self, said: Said, index: int, status: Status, scores: Sequence[ScoredToken] = ()) -> dict[str, Any]:
        """The item of a block that the answer has said. Only text has scores."""
        match said:
            case Text(text):
                return self.message(index, status, [text_part(text, scores)])
            case Thinking(text):
                return self.reasoning(index, status, text)
            case ToolCall():
                return self.call(said, index, status)

    def message(self, index: int, status: Status, content: list[dict[str, Any]]) -> dict[str, Any]:
        """A message of the assistant."""
        item = {"id": f"msg_{self._suffix}_{index}", "type": "message", "status": status, "role": "assistant"}
        return {**item, "content": content}

    def reasoning(self, index: int, status: Status, text: str) -> dict[str, Any]:
        """The reasoning itself, and sealed if the client asked for that."""
        item: dict[str, Any] = {
            "id": f"rs_{self._suffix}_{index}",
            "type": "reasoning",
            "status": status,
            "summary": [],
        }
        item["content"] = [reasoning_part(text)] if text else []
        if self._seal and text:
            item["encrypted_content"] = sealed(text)
        return item

    def call(self, call: ToolCall, index: int, status: Status) -> dict[str, Any]:
        """By the client's own names. Free-form input is what the model wrote in place of it, if it is not what it was
        to be."""
        tool = self._tools.get(call.name, _NO_TOOL)
        item: dict[str, Any] = {"id": self.call_id(call.name, index)}
        name = own_name(tool) or call.name
        named = {"namespace": tool.namespace} if tool.namespace else {}
        if tool.free_form:
            item |= {"type": "custom_tool_call", "call_id": call.id, "name": name, "input": free_input(call.arguments)}
        else:
            item |= {"type": "function_call", "status": status, "call_id": call.id, "name": name}
            item["arguments"] = call.arguments
        return item | named

    def call_id(self, name: str, index: int) -> str:
        """The id of a call's item (not of the call)."""
        return f"{'ctc' if self.is_free_form(name) else 'fc'}_{self._suffix}_{index}"

    def is_free_form(self, name: str) -> bool:
        """Whether the tool takes plain text."""
        return self._tools.get(name, _NO_TOOL).free_form


def free_input(arguments: str) -> str:
    """The plain text in a free-form tool's arguments."""
    try:
        return msgspec.json.decode(arguments, type=_FreeForm).input
    except msgspec.MsgspecError:
        return arguments


def text_part(text: str, scores: Sequence[ScoredToken] = ()) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs_of(scores)}


def reasoning_part(text: str) -> dict[str, Any]:
    """A part of reasoning."""
    return {"type": "reasoning_text", "text": text}


def logprobs_of(scores: Iterable[ScoredToken]) -> list[dict[str, Any]]:
    """Each token and its likeliest alternatives."""
    return [
        {**_token(piece, logprob), "top_logprobs": [_token(*alternative) for alternative in top]}
        for piece, logprob, top in scores
    ]


def scores_within(text: str, scores: Sequence[ScoredToken], start: int) -> tuple[Sequence[ScoredToken], int]:
    """The tokens from `start` on that `text` was made of, and where to look on for what follows it.

    Tokens that belong to no text may stand before; a text with characters that no token spells has none. Linear.
    """
    pieces, wanted = [score.piece for score in scores[start:]], text.encode()
    begins = list(accumulate(map(len, pieces), initial=0))
    at = _find(b"".join(pieces), wanted, begins)
    if at < 0 or not wanted:
        return (), start
    first = start + bisect_right(begins, at) - 1
    after = start + bisect_left(begins, at + len(wanted))
    return scores[first:after], after


def _find(spelled: bytes, wanted: bytes, begins: Sequence[int]) -> int:
    """Where it stands: rather at the beginning of a token, as texts do, than within a mark."""
    at = first = spelled.find(wanted)
    while at >= 0:
        if begins[bisect_left(begins, at)] == at:
            return at
        at = spelled.find(wanted, at + 1)
    return first


def _token(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": shown(piece), "bytes": list(piece), "logprob": finite(logprob)}
