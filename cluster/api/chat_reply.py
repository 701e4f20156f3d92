"""OpenAI Chat Completions: answers, whole and as chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.api import errors, sse
from cluster.api.chat import parse_chat
from cluster.api.dialect import AnswerId, Dialect, ErrorBody

if TYPE_CHECKING:
    from cluster.output.assembly import Ending, Usage
    from cluster.prompt.conversation import Conversation

FINISH_REASONS: Final = {"end": "stop", "length": "length", "stop_sequence": "stop"}


class ChatReply:
    """A role chunk, text chunks, a finish chunk, a usage chunk if asked for, `[DONE]`."""

    def __init__(self, conversation: Conversation, answer: AnswerId) -> None:
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{answer.suffix}",
            "created": answer.created_s,
            "model": conversation.model,
        }
        self._usage_wanted = conversation.stream_usage

    def whole(self, text: str, ending: Ending, usage: Usage) -> dict[str, Any]:
        """The body of a non-streaming answer."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": FINISH_REASONS[ending.reason],
        }
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage_of(usage)}

    def start(self, usage: Usage) -> bytes:  # noqa: ARG002 - chat says its usage at the end
        """The role."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def text(self, text: str) -> bytes:
        """A piece of the answer."""
        return self._chunk({"content": text}, None)

    def ping(self) -> bytes:
        """A comment: clients skip it, proxies see a stream that lives."""
        return sse.COMMENT

    def finish(self, ending: Ending, usage: Usage) -> bytes:
        """The reason, then the usage in a chunk without choices."""
        last = self._chunk({}, FINISH_REASONS[ending.reason])
        if self._usage_wanted:
            last += sse.data({**self._head, **_CHUNK, "choices": [], "usage": usage_of(usage)})
        return last + sse.DONE

    def error(self, error: BaseException) -> bytes:
        """Ends a stream that failed after its start; without `[DONE]`, since it is not."""
        return sse.data(errors.chat_error(errors.fault_of(error), str(error)))

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._usage_wanted else {}
        return sse.data({**self._head, **_CHUNK, "choices": [choice], **usage})


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
