"""Anthropic Messages: answers, whole and as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.api import errors, sse
from cluster.api.dialect import AnswerId, Dialect, ErrorBody
from cluster.api.messages import parse_count, parse_message
from cluster.output.events import TextDelta
from cluster.prompt.conversation import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.api.dialect import Answer
    from cluster.output.assembly import Ending, Piece, Usage
    from cluster.prompt.conversation import Conversation

STOP_REASONS: Final = {
    "end": "end_turn",
    "length": "max_tokens",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_use",
    "context_window": "model_context_window_exceeded",
}


class MessagesReply:
    """`message_start`, one text block if there is text, `message_delta` with the final usage, `message_stop`."""

    def __init__(self, conversation: Conversation, answer: AnswerId) -> None:
        self._id = answer.suffix
        self._model = conversation.model
        self._block_open = False
        self._ending: Ending | None = None

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """See `Reply`."""
        (answer,) = answers
        content = [{"type": "text", "text": block.text} for block in answer.blocks if isinstance(block, Text)]
        return {**self._message(usage), "content": content, **_stopped(answer.ending)}

    def start(self, usage: Usage) -> bytes:
        """Usage goes out first, so that clients can show how full the context is."""
        return sse.named({"type": "message_start", "message": self._message(usage)})

    def say(self, piece: Piece, choice: int) -> bytes:  # noqa: ARG002 - there is one
        """See `Reply`."""
        self._ending = piece.ending
        return b"".join(self._text(event.text) for event in piece.events if isinstance(event, TextDelta))

    def ping(self) -> bytes:
        """Tells clients and proxies that the stream lives."""
        return sse.named({"type": "ping"})

    def finish(self, usage: Usage) -> bytes:
        """Usage is cumulative: it repeats the input counts, which may have been predictions in `message_start`."""
        assert self._ending is not None
        delta = {"type": "message_delta", "delta": _stopped(self._ending), "usage": usage_of(usage)}
        return self._close_block() + sse.named(delta) + sse.named({"type": "message_stop"})

    def error(self, error: BaseException) -> bytes:
        """Ends a stream that failed after its start."""
        body = errors.messages_error(errors.fault_of(error), str(error), f"req_{self._id}")
        return self._close_block() + sse.named(body)

    def _text(self, text: str) -> bytes:
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        if self._block_open:
            return sse.named(delta)
        self._block_open = True
        start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return sse.named(start) + sse.named(delta)

    def _close_block(self) -> bytes:
        return sse.named({"type": "content_block_stop", "index": 0}) if self._block_open else b""

    def _message(self, usage: Usage) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(usage),
        }


def usage_of(usage: Usage) -> dict[str, Any]:
    """Total input is `input_tokens` plus what was read from the cache; writing to it costs nothing here."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.output_tokens,
    }


def _stopped(ending: Ending) -> dict[str, Any]:
    return {"stop_reason": STOP_REASONS[ending.reason], "stop_sequence": ending.stop}


def _error(error: BaseException, request_id: str) -> ErrorBody:
    fault = errors.fault_of(error)
    body = errors.messages_error(fault, str(error), request_id)
    return ErrorBody(fault.status, errors.headers_of(fault), body)


MESSAGES: Final = Dialect("messages", parse_message, MessagesReply, _error)
COUNT: Final = MESSAGES._replace(api="count_tokens", parse=parse_count)
