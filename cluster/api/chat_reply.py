"""OpenAI Chat Completions: answers, whole and as chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.api import sse
from cluster.api.chat import parse_chat
from cluster.api.chunks import FINISH_REASONS, Chunks, error_body, finite, shown, usage_of
from cluster.api.dialect import AnswerId, Dialect
from cluster.output.events import CallArguments, CallStart, TextDelta, ThinkingDelta
from cluster.prompt.conversation import Text, Thinking, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.api.dialect import Answer
    from cluster.output.assembly import Piece, ScoredToken, Usage
    from cluster.output.events import Event
    from cluster.prompt.conversation import Conversation


class ChatReply(Chunks):
    """Of each choice a role chunk, then chunks of reasoning, text and calls in their order, and a finish chunk. At the
    end a usage chunk if asked for, `[DONE]`.

    Of a call that broke the chunks remain, its arguments no JSON; its index is not used again.
    """

    def __init__(self, conversation: Conversation, answer: AnswerId) -> None:
        self._names = {"id": f"chatcmpl-{answer.suffix}", "created": answer.created_s, "model": conversation.model}
        super().__init__({**self._names, "object": "chat.completion.chunk"}, usage_wanted=conversation.stream_usage)
        self._scored = conversation.limits.logprobs is not None
        self._calls = [-1] * conversation.limits.choices  # the last call's index, by choice
        self._unsaid: list[list[ScoredToken]] = [[] for _ in self._calls]  # scores of tokens without a chunk so far
        self._frames: dict[tuple[type[Event], int], sse.Frame] = {}

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """See `Reply`."""
        choices = [
            {
                "index": index,
                "message": _message(answer),
                "logprobs": self._logprobs(answer.scores),
                "finish_reason": FINISH_REASONS[answer.ending.reason],
            }
            for index, answer in enumerate(answers)
        ]
        return {**self._names, "object": "chat.completion", "choices": choices, "usage": usage_of(usage)}

    def start(self, usage: Usage) -> bytes:  # noqa: ARG002 - chat says its usage at the end
        """The role of each choice."""
        role = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(choice, role, None, ()) for choice in range(len(self._calls)))

    def say(self, piece: Piece, choice: int) -> bytes:
        """See `Reply`."""
        self._unsaid[choice] += piece.scores
        said = [self._said(event, choice) for event in piece.events]
        if piece.ending is not None:
            said.append(self._chunk(choice, {}, FINISH_REASONS[piece.ending.reason], self._take(choice)))
        return b"".join(said)

    def _said(self, event: Event, choice: int) -> bytes:
        if isinstance(event, TextDelta | ThinkingDelta) and not self._unsaid[choice]:
            kind = (type(event), choice)
            if kind not in self._frames:
                hollow = self._delta(type(event)(sse.HOLE), choice) or {}
                self._frames[kind] = sse.frame(self._chunk(choice, hollow, None, ()))
            return self._frames[kind].filled(event.text)
        delta = self._delta(event, choice)
        return b"" if delta is None else self._chunk(choice, delta, None, self._take(choice))

    def _delta(self, event: Event, choice: int) -> dict[str, Any] | None:
        match event:
            case TextDelta(text):
                return {"content": text}
            case ThinkingDelta(text):
                return {"reasoning_content": text}
            case CallStart(call, name):
                self._calls[choice] += 1
                started = {"id": call, "type": "function", "function": {"name": name, "arguments": ""}}
                return {"tool_calls": [{"index": self._calls[choice], **started}]}
            case CallArguments(text):
                return {"tool_calls": [{"index": self._calls[choice], "function": {"arguments": text}}]}
        return None  # how a call ended shows in its arguments

    def _take(self, choice: int) -> Sequence[ScoredToken]:
        scores, self._unsaid[choice] = self._unsaid[choice], []
        return scores

    def _chunk(self, choice: int, delta: dict[str, Any], reason: str | None, scores: Sequence[ScoredToken]) -> bytes:
        logprobs = self._logprobs(scores) if scores else None
        return self.chunk({"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason})

    def _logprobs(self, scores: Sequence[ScoredToken]) -> dict[str, Any] | None:
        if not self._scored:
            return None
        content = [
            {**_token(piece, logprob), "top_logprobs": [_token(*alternative) for alternative in top]}
            for piece, logprob, top in scores
        ]
        return {"content": content, "refusal": None}


def _message(answer: Answer) -> dict[str, Any]:
    """What was thought, said and called. Text around calls is one text here: this protocol has no order of blocks."""
    text = "".join(block.text for block in answer.blocks if isinstance(block, Text))
    thought = "".join(block.text for block in answer.blocks if isinstance(block, Thinking))
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.arguments}}
        for block in answer.blocks
        if isinstance(block, ToolCall)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _token(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": shown(piece), "bytes": list(piece), "logprob": finite(logprob)}


CHAT: Final = Dialect("chat", parse_chat, ChatReply, error_body)
