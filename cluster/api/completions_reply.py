"""OpenAI Completions: answers, whole and as chunks."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, Final

from cluster.api.chunks import FINISH_REASONS, Chunks, error_body, finite, shown, usage_of
from cluster.api.completions import parse_completion
from cluster.api.dialect import AnswerId, Dialect
from cluster.output.events import TextDelta
from cluster.prompt.conversation import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cluster.api.dialect import Answer
    from cluster.output.assembly import Piece, ScoredToken, Usage
    from cluster.prompt.conversation import Conversation


class CompletionsReply(Chunks):
    """Text chunks of each choice, its finish chunk, at the end a usage chunk if asked for, `[DONE]`.

    The choices of one prompt follow each other; those of the next prompt come after them.
    """

    def __init__(self, conversation: Conversation, answer: AnswerId) -> None:
        head = {
            "id": f"cmpl-{answer.suffix}",
            "object": "text_completion",
            "created": answer.created_s,
            "model": conversation.model,
        }
        super().__init__(head, usage_wanted=conversation.stream_usage)
        self._alternatives = conversation.limits.logprobs
        choices = len(conversation.prompts) * conversation.limits.choices
        self._offsets = [_Offsets() for _ in range(choices)]
        self._unsaid: list[list[ScoredToken]] = [[] for _ in range(choices)]  # scores of tokens without a chunk so far

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """See `Reply`."""
        choices = [
            self._choice(index, _text(answer), FINISH_REASONS[answer.ending.reason], answer.scores)
            for index, answer in enumerate(answers)
        ]
        return {**self._head, "choices": choices, "usage": usage_of(usage)}

    def start(self, usage: Usage) -> bytes:  # noqa: ARG002 - completions say their usage at the end
        """Nothing: the first text is the first event."""
        return b""

    def say(self, piece: Piece, choice: int) -> bytes:
        """See `Reply`."""
        self._unsaid[choice] += piece.scores
        text = "".join(event.text for event in piece.events if isinstance(event, TextDelta))
        if not text and piece.ending is None:
            return b""
        reason = None if piece.ending is None else FINISH_REASONS[piece.ending.reason]
        scores, self._unsaid[choice] = self._unsaid[choice], []
        return self.chunk(self._choice(choice, text, reason, scores))

    def _choice(self, index: int, text: str, reason: str | None, scores: Sequence[ScoredToken]) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": self._logprobs(index, scores), "finish_reason": reason}

    def _logprobs(self, index: int, scores: Sequence[ScoredToken]) -> dict[str, Any] | None:
        if self._alternatives is None:
            return None
        return {
            "tokens": [shown(score.piece) for score in scores],
            "token_logprobs": [finite(score.logprob) for score in scores],
            "top_logprobs": [_alternatives(score) for score in scores] if self._alternatives else None,
            "text_offset": [self._offsets[index].next(score.piece) for score in scores],
        }


class _Offsets:
    """Where each token's text begins in the answer, in characters; inside a character, where that one does."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at = 0

    def next(self, piece: bytes) -> int:
        at = self._at
        self._at += len(self._utf8.decode(piece))
        return at


def _text(answer: Answer) -> str:
    return "".join(block.text for block in answer.blocks if isinstance(block, Text))


def _alternatives(score: ScoredToken) -> dict[str, float]:
    """The likeliest tokens; of two that look alike the likelier one."""
    by_likelihood: Iterable[tuple[bytes, float]] = sorted(score.top, key=lambda token: token[1])
    return {shown(piece): finite(logprob) for piece, logprob in by_likelihood}


COMPLETIONS: Final = Dialect("completions", parse_completion, CompletionsReply, error_body)
