"""Anthropic Messages: answers, whole and as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from cluster.api import errors, sse
from cluster.api.call_ids import shown
from cluster.api.dialect import AnswerId, Dialect, ErrorBody
from cluster.api.messages import parse_count, parse_message
from cluster.api.messages_outline import outline_of_count, outline_of_message
from cluster.output.events import CallArguments, CallBroken, CallEnd, CallStart, TextDelta, ThinkingDelta
from cluster.prompt.conversation import Text, Thinking, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.api.dialect import Answer
    from cluster.output.assembly import Ending, Piece, Usage
    from cluster.output.events import Event, Said
    from cluster.prompt.conversation import Conversation

STOP_REASONS: Final = {
    "end": "end_turn",
    "length": "max_tokens",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool_use",
    "context_window": "model_context_window_exceeded",
}


class MessagesReply:
    """`message_start`, the blocks one after the other, `message_delta` with the final usage, `message_stop`."""

    def __init__(self, conversation: Conversation, answer: AnswerId) -> None:
        self._id = answer.suffix
        self._model = conversation.model
        self._hides_thinking = conversation.hide_thinking
        self._blocks = _Blocks(self._signature, hides_thinking=conversation.hide_thinking)
        self._ending: Ending | None = None

    @property
    def _signature(self) -> str:
        """Clients keep reasoning only with a signature; nothing is read from it when it comes back."""
        return f"sig_{self._id}"

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """See `Reply`."""
        (answer,) = answers
        content = [self._block(block) for block in answer.blocks]
        return {**self._message(usage), "content": content, **_stopped(answer.ending)}

    def start(self, usage: Usage) -> bytes:
        """Usage goes out first, so that clients can show how full the context is."""
        return sse.named({"type": "message_start", "message": self._message(usage)})

    def say(self, piece: Piece, choice: int) -> bytes:  # noqa: ARG002 - there is one
        """See `Reply`."""
        self._ending = piece.ending
        return b"".join(map(self._blocks.say, piece.events))

    def ping(self) -> bytes:
        """Tells clients and proxies that the stream lives."""
        return sse.named({"type": "ping"})

    def finish(self, usage: Usage) -> bytes:
        """Usage is cumulative: it repeats the input counts, which may have been predictions in `message_start`."""
        assert self._ending is not None
        delta = {"type": "message_delta", "delta": _stopped(self._ending), "usage": usage_of(usage)}
        return self._blocks.close() + sse.named(delta) + sse.named({"type": "message_stop"})

    def error(self, error: BaseException) -> bytes:
        """Ends a stream that failed after its start."""
        body = errors.messages_error(errors.fault_of(error), str(error), f"req_{self._id}")
        return self._blocks.close() + sse.named(body)

    def _block(self, block: Said) -> dict[str, Any]:
        match block:
            case Text(text):
                return {"type": "text", "text": text}
            case Thinking(text):
                thinking = "" if self._hides_thinking else text
                return {"type": "thinking", "thinking": thinking, "signature": self._signature}
            case ToolCall(id=native, name=name, arguments=arguments):
                # As generated: to decode and to encode it again could change numbers.
                return {
                    "type": "tool_use",
                    "id": shown(native),
                    "name": name,
                    "input": msgspec.Raw(arguments.encode() or b"{}"),
                }

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


class _Blocks:
    """Streamed blocks: at most one is open, and their indices have no gaps."""

    def __init__(self, signature: str, *, hides_thinking: bool) -> None:
        self._signature = signature
        self._hides_thinking = hides_thinking
        self._index = -1
        self._open = ""  # the type of the open block
        self._arguments: list[str] = []
        self._frames: dict[str, sse.Frame] = {}  # of deltas of the open block

    def say(self, event: Event) -> bytes:
        """What one event adds."""
        match event:
            case TextDelta(text):
                start = self._continue({"type": "text", "text": ""})
                return start + self._delta("text_delta", "text", text)
            case ThinkingDelta(text):
                start = self._continue({"type": "thinking", "thinking": "", "signature": ""})
                return start if self._hides_thinking else start + self._delta("thinking_delta", "thinking", text)
            case CallStart(id=native, name=name):
                self._arguments.clear()
                return self._start({"type": "tool_use", "id": shown(native), "name": name, "input": {}})
            case CallArguments(text):
                self._arguments.append(text)
                return self._delta("input_json_delta", "partial_json", text)
            case CallEnd():
                return self.close()
            case CallBroken():
                return self._void() + self.close()

    def close(self) -> bytes:
        """The end of the open block, if one is open."""
        if not self._open:
            return b""
        signed = self._delta("signature_delta", "signature", self._signature) if self._open == "thinking" else b""
        self._open = ""
        return signed + sse.named({"type": "content_block_stop", "index": self._index})

    def _continue(self, block: dict[str, Any]) -> bytes:
        return b"" if self._open == block["type"] else self._start(block)

    def _start(self, block: dict[str, Any]) -> bytes:
        closed = self.close()
        self._index += 1
        self._open = block["type"]
        self._frames.clear()
        return closed + sse.named({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, kind: str, field: str, text: str) -> bytes:
        if kind not in self._frames:
            delta = {"type": kind, field: sse.HOLE}
            event = sse.named({"type": "content_block_delta", "index": self._index, "delta": delta})
            self._frames[kind] = sse.frame(event)
        return self._frames[kind].filled(text)

    def _void(self) -> bytes:
        """Makes sure that nobody can take the input of a broken call for JSON; nothing at all is read as `{}`."""
        try:
            msgspec.json.decode("".join(self._arguments) or "{}")
        except msgspec.DecodeError:
            return b""
        return self._delta("input_json_delta", "partial_json", "{")


def usage_of(usage: Usage) -> dict[str, Any]:
    """Total input is `input_tokens` plus what was read from the cache; writing to it costs nothing here."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _stopped(ending: Ending) -> dict[str, Any]:
    return {"stop_reason": STOP_REASONS[ending.reason], "stop_sequence": ending.stop}


def _error(error: BaseException, request_id: str) -> ErrorBody:
    fault = errors.fault_of(error)
    body = errors.messages_error(fault, str(error), request_id)
    return ErrorBody(fault.status, errors.headers_of(error), body)


MESSAGES: Final = Dialect("messages", parse_message, MessagesReply, _error, outline_of_message)
COUNT: Final = MESSAGES._replace(api="count_tokens", parse=parse_count, outline=outline_of_count)
