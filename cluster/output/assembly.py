"""Token deltas of one generation to what protocols say of it: text, how it ended, usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from cluster.output.detokenizer import Detokenizer, Vocabulary
from cluster.output.stop import StopScanner
from router.errors import ReplicaDied
from router.hashing import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.engine import TokenDelta


class Usage(NamedTuple):
    """Tokens of one request. `cached_tokens` of the prompt were not computed again."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Ending(NamedTuple):
    """Why the answer ends; `stop` is the stop string that ended it."""

    reason: Literal["end", "length", "stop_sequence"]
    stop: str | None = None


class Piece(NamedTuple):
    """New text (maybe none) and, on the last piece, the ending."""

    text: str
    ending: Ending | None


class Assembly:
    """Counts, detokenises and looks for stop strings. After an ending the generation should be aborted, if it runs.

    `cached_tokens` is the prediction until the engine has said its own number.
    """

    def __init__(self, vocabulary: Vocabulary, *, stops: Sequence[str], prompt_tokens: int) -> None:
        self._detokenizer = Detokenizer(vocabulary)
        self._scanner = StopScanner(stops)
        self._prompt_tokens = prompt_tokens
        self._output_tokens = 0
        self.cached_tokens = 0

    @property
    def usage(self) -> Usage:
        """As known now. Never claims more cached tokens than the prompt has."""
        return Usage(self._prompt_tokens, min(self.cached_tokens, self._prompt_tokens), self._output_tokens)

    def push(self, delta: TokenDelta) -> Piece:
        """Take one delta. Raises `ReplicaDied` for a generation that its engine gave up."""
        if delta.cached_tokens is not None:
            self.cached_tokens = delta.cached_tokens
        self._output_tokens += len(delta.tokens) // BYTES_PER_TOKEN
        text = self._detokenizer.push(delta.tokens)
        if delta.finish_reason is not None:
            text += self._detokenizer.finish()
        text, stop = self._scanner.push(text)
        if stop is not None:
            return Piece(text, Ending("stop_sequence", stop))
        match delta.finish_reason:
            case None:
                return Piece(text, None)
            case "stop":
                return Piece(text + self._scanner.finish(), Ending("end"))
            case "length":
                return Piece(text + self._scanner.finish(), Ending("length"))
            case _:
                raise ReplicaDied(f"the engine ended the generation: {delta.finish_reason}")

    def push_all(self, deltas: Sequence[TokenDelta]) -> Piece:
        """Take deltas until one ends the answer; their texts as one piece."""
        texts: list[str] = []
        for delta in deltas:
            piece = self.push(delta)
            texts.append(piece.text)
            if piece.ending is not None:
                return Piece("".join(texts), piece.ending)
        return Piece("".join(texts), None)
