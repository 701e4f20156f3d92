"""What answers of Chat Completions and of Completions have in common: their frame, usage, endings, token scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.api import errors, sse
from cluster.api.dialect import ErrorBody

if TYPE_CHECKING:
    from cluster.output.assembly import Usage

FINISH_REASONS: Final = {
    "end": "stop",
    "length": "length",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "context_window": "length",
}
LOWEST_LOGPROB: Final = -9999.0  # JSON has no minus infinity


class Chunks:
    """The frame of one answer: `head` are the fields that every part of it repeats."""

    def __init__(self, head: dict[str, Any], *, usage_wanted: bool) -> None:
        self._head = head
        self._usage_wanted = usage_wanted

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """One choice's part of the answer. Where usage comes at the end, no chunk before it has any."""
        usage = {"usage": None} if self._usage_wanted else {}
        return sse.data({**self._head, "choices": [choice], **usage})

    def ping(self) -> bytes:
        """A comment: clients skip it, proxies see a stream that lives."""
        return sse.COMMENT

    def finish(self, usage: Usage) -> bytes:
        """The usage in a chunk without choices, if it was asked for."""
        if not self._usage_wanted:
            return sse.DONE
        return sse.data({**self._head, "choices": [], "usage": usage_of(usage)}) + sse.DONE

    def error(self, error: BaseException) -> bytes:
        """Ends a stream that failed after its start; without `[DONE]`, since it is not."""
        return sse.data(errors.chat_error(errors.fault_of(error), str(error)))


def usage_of(usage: Usage) -> dict[str, Any]:
    """Cached tokens are part of the prompt's here, reasoning tokens part of the answer's."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def error_body(error: BaseException, _request_id: str) -> ErrorBody:
    """An error before anything was sent."""
    fault = errors.fault_of(error)
    return ErrorBody(fault.chat_status, errors.headers_of(error), errors.chat_error(fault, str(error)))


def shown(piece: bytes) -> str:
    """A token as text. One that is only part of a character is shown by its bytes, so that no two look alike."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def finite(logprob: float) -> float:
    """As JSON can say it."""
    return max(logprob, LOWEST_LOGPROB)
