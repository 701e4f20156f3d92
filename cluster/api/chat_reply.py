"""OpenAI Chat Completions: answers, whole and as chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.api import errors, sse
from cluster.api.chat import parse_chat
from cluster.api.dialect import AnswerId, Dialect, ErrorBody
from cluster.output.events import TextDelta
from cluster.prompt.conversation import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.api.dialect import Answer
    from cluster.output.assembly import Piece, Usage
    from cluster.prompt.conversation import Conversation

FINISH_REASONS: Final = {
    "end": "stop",
    "length": "length",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "context_window": "length",
}


class ChatReply:
    """A role chunk, text chunks, a finish chunk, a usage chunk if asked for, `[DONE]`."""

    def __init__(self, conversation: Conversation, answer: AnswerId) -> None:
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{answer.suffix}",
            "created": answer.created_s,
            "model": conversation.model,
        }
        self._usage_wanted = conversation.stream_usage

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """See `Reply`."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": _text(answer), "refusal": None},
                "logprobs": None,
                "finish_reason": FINISH_REASONS[answer.ending.reason],
            }
            for index, answer in enumerate(answers)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage_of(usage)}

    def start(self, usage: Usage) -> bytes:  # noqa: ARG002 - chat says its usage at the end
        """The role."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def say(self, piece: Piece, choice: int) -> bytes:  # noqa: ARG002 - so far there is one
        """See `Reply`."""
        said = [self._chunk({"content": event.text}, None) for event in piece.events if isinstance(event, TextDelta)]
        if piece.ending is not None:
            said.append(self._chunk({}, FINISH_REASONS[piece.ending.reason]))
        return b"".join(said)

    def ping(self) -> bytes:
        """A comment: clients skip it, proxies see a stream that lives."""
        return sse.COMMENT

    def finish(self, usage: Usage) -> bytes:
        """The usage in a chunk without choices, if it was asked for."""
        if not self._usage_wanted:
            return sse.DONE
        return sse.data({**self._head, **_CHUNK, "choices": [], "usage": usage_of(usage)}) + sse.DONE

    def error(self, error: BaseException) -> bytes:
        """Ends a stream that failed after its start; without `[DONE]`, since it is not."""
        return sse.data(errors.chat_error(errors.fault_of(error), str(error)))

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._usage_wanted else {}
        return sse.data({**self._head, **_CHUNK, "choices": [choice], **usage})


def _text(answer: Answer) -> str:
    return "".join(block.text for block in answer.blocks if isinstance(block, Text))


_CHUNK: Final = {"object": "chat.completion.chunk"}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Cached tokens are part of the prompt's here."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _error(error: BaseException, _request_id: str) -> ErrorBody:
    fault = errors.fault_of(error)
    return ErrorBody(fault.chat_status, errors.headers_of(fault), errors.chat_error(fault, str(error)))


CHAT: Final = Dialect("chat", parse_chat, ChatReply, _error)
