"""OpenAI Responses: answers, whole and as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.api import errors, sse
from cluster.api.chunks import error_body
from cluster.api.dialect import AnswerId, Dialect
from cluster.api.responses import ECHOED, asked_of, parse_responses, response_id
from cluster.api.responses_output import Items, scores_within
from cluster.api.responses_stream import ItemStream
from cluster.prompt.conversation import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cluster.api.dialect import Answer
    from cluster.output.assembly import Ending, Piece, ScoredToken, Usage
    from cluster.prompt.conversation import Conversation

_CUT_SHORT: Final = {"length": "max_output_tokens", "context_window": "max_output_tokens"}


class ResponsesReply:
    """`response.created` and `response.in_progress`, the events of each item, and `response.completed` or
    `response.incomplete` with the whole response."""

    def __init__(self, conversation: Conversation, answer: AnswerId) -> None:
        asked = asked_of(conversation)
        self._head: dict[str, Any] = {
            **ECHOED,
            **asked.fields,
            "id": response_id(answer.suffix),
            "object": "response",
            "created_at": answer.created_s,
            "model": conversation.model,
        }
        self._items = Items(answer.suffix, conversation.tools, seal=asked.sealed)
        self._stream = ItemStream(self._items)
        self._ending: Ending | None = None

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """See `Reply`."""
        (answer,) = answers
        return self._ended(list(self._output(answer)), answer.ending, usage)

    def start(self, usage: Usage) -> bytes:  # noqa: ARG002 - usage comes at the end
        """The response as it begins."""
        begun = self._response("in_progress")
        created = self._stream.event("response.created", response=begun)
        return created + self._stream.event("response.in_progress", response=begun)

    def say(self, piece: Piece, choice: int) -> bytes:  # noqa: ARG002 - there is one
        """See `Reply`."""
        self._stream.score(piece.scores)
        said = [part for event in piece.events for part in self._stream.say(event)]
        if piece.ending is not None:
            self._ending = piece.ending
            said += self._stream.close("incomplete" if piece.ending.reason in _CUT_SHORT else "completed")
        return b"".join(said)

    def ping(self) -> bytes:
        """A comment: clients skip it, proxies see a stream that lives."""
        return sse.COMMENT

    def finish(self, usage: Usage) -> bytes:
        """The whole response once more, as clients expect it."""
        assert self._ending is not None
        response = self._ended(self._stream.output, self._ending, usage)
        return self._stream.event(f"response.{response['status']}", response=response)

    def error(self, error: BaseException) -> bytes:
        """Ends a stream that failed after its start, in the two ways that clients look for."""
        fault = errors.fault_of(error)
        problem = {"code": fault.chat_code or fault.chat_type, "message": fault.text or str(error)}
        failed = {**self._response("failed"), "error": problem, "output": self._stream.output}
        event = self._stream.event("error", **problem, param=None)
        return event + self._stream.event("response.failed", response=failed)

    def _output(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """What is open when an answer is cut short is incomplete; a call never is."""
        cut, start = answer.ending.reason in _CUT_SHORT, 0
        for index, said in enumerate(answer.blocks):
            scores: Sequence[ScoredToken] = ()
            if not isinstance(said, ToolCall):
                scores, start = scores_within(said.text, answer.scores, start)
            last = index == len(answer.blocks) - 1 and not isinstance(said, ToolCall)
            yield self._items.of(said, index, "incomplete" if cut and last else "completed", scores)

    def _ended(self, output: list[dict[str, Any]], ending: Ending, usage: Usage) -> dict[str, Any]:
        why = _CUT_SHORT.get(ending.reason)
        response = self._response("incomplete" if why else "completed")
        details = {"reason": why} if why else None
        return response | {"incomplete_details": details, "output": output, "usage": usage_of(usage)}

    def _response(self, status: str) -> dict[str, Any]:
        empty: dict[str, Any] = {"error": None, "incomplete_details": None, "output": [], "usage": None}
        return {**self._head, "status": status, **empty}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Cached tokens are part of the prompt's here, reasoning tokens part of the answer's."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


RESPONSES: Final = Dialect("responses", parse_responses, ResponsesReply, error_body)
COUNT_INPUT: Final = RESPONSES._replace(api="count_tokens")
