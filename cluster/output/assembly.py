"""Token deltas of one generation to what protocols say of it: events, how it ended, usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from cluster.output.detokenizer import Detokenizer, Vocabulary
from cluster.output.events import CallEnd, TextDelta, merged
from cluster.output.parsing import PlainParser
from cluster.output.stop import StopScanner
from router.errors import ReplicaDied
from router.hashing import BYTES_PER_TOKEN
from workers.engine import joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.output.events import Event
    from cluster.output.parsing import OutputParser
    from workers.engine import TokenDelta, TokenLogprob


class Usage(NamedTuple):
    """Tokens of one request, of all its choices. `cached_tokens` of the prompt were not computed again;
    `reasoning_tokens` are part of the output's."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0


class Ending(NamedTuple):
    """Why an answer ends; `stop` is the stop string that ended it. `context_window`: cut where the model's window ends,
    before as many tokens as were asked for."""

    reason: Literal["end", "length", "stop_sequence", "tool_use", "context_window"]
    stop: str | None = None


class ScoredToken(NamedTuple):
    """A generated token's bytes and log probability, and the likeliest alternatives (bytes, log probability)."""

    piece: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]


class Piece(NamedTuple):
    """New events (maybe none; deltas of one kind never follow each other) and, on the last piece, the ending. `scores`
    are of new tokens, if asked for."""

    events: tuple[Event, ...]
    ending: Ending | None = None
    scores: tuple[ScoredToken, ...] = ()


class Assembly:
    """Counts, detokenises, parses and looks for stop strings in the answer's text (not in reasoning or calls).

    After an ending the generation should be aborted, if it runs. `cached_tokens` is the prediction until the engine has
    said its own number. `tokens` are all that were generated so far, packed u32.
    """

    def __init__(
        self, vocabulary: Vocabulary, parser: OutputParser, *, stops: Sequence[str], prompt_tokens: int
    ) -> None:
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary)
        self._parser = parser
        self._scanner = StopScanner(stops)
        self._has_stops = bool(stops)
        self._is_plain = not stops and isinstance(parser, PlainParser)
        self._prompt_tokens = prompt_tokens
        self._reasoning_tokens = 0
        self._called = False
        self.fault: ReplicaDied | None = None  # that came behind what was said last
        self.tokens = bytearray()
        self.cached_tokens = 0

    @property
    def usage(self) -> Usage:
        """As known now. Never claims more cached tokens than the prompt has."""
        cached = min(self.cached_tokens, self._prompt_tokens)
        return Usage(self._prompt_tokens, cached, len(self.tokens) // BYTES_PER_TOKEN, self._reasoning_tokens)

    def waits(self, tokens: bytes) -> bool:
        """Whether these, the next tokens, can wait to be read with others: they neither end the answer nor belong to a
        call."""
        if self._is_plain:
            return True
        if self._has_stops or self._detokenizer.holds:  # that character may begin a mark
            return False
        return self._parser.passes(self._vocabulary.bytes_of(tokens), tokens)

    def push(self, delta: TokenDelta) -> Piece:
        """Take one delta. Raises `ReplicaDied` for a generation that its engine gave up."""
        return self.push_all((delta,))

    def push_all(self, deltas: Sequence[TokenDelta]) -> Piece:
        """Take deltas until one ends the answer, as one piece. A fault behind some text is kept as `fault`, for the
        text to be said first; else it is raised."""
        events: list[Event] = []
        scores: list[ScoredToken] = []
        ending: Ending | None = None
        if len(deltas) > 1 and not self._has_stops:
            deltas = (joined(deltas),)
        for delta in deltas:
            try:
                ending = self._take(delta, events, scores)
            except ReplicaDied as fault:
                if not events:
                    raise
                self.fault = fault
                break
            if ending is not None:
                break
        return Piece(merged(events), ending, tuple(scores))

    def _take(self, delta: TokenDelta, events: list[Event], scores: list[ScoredToken]) -> Ending | None:
        if delta.cached_tokens is not None:
            self.cached_tokens = delta.cached_tokens
        if delta.logprobs:
            scores += map(self._scored, delta.logprobs)
        stop = self._read(delta.tokens, events)
        if stop is None and delta.finish_reason is not None:
            stop = self._scan(self._parser.finish(self._detokenizer.finish()), events)
            if stop is None:
                if held := self._scanner.finish():
                    events.append(TextDelta(held))
                return self._ending(delta)
        return None if stop is None else Ending("stop_sequence", stop)

    def _read(self, tokens: bytes, events: list[Event]) -> str | None:
        """The stop string that ends the answer in these tokens, if one does; those behind it were never generated."""
        if self._is_plain:
            self.tokens += tokens
            if text := self._detokenizer.push(tokens):
                events.append(TextDelta(text))
            return None
        if len(tokens) > BYTES_PER_TOKEN and self.waits(tokens):
            self._read_one(self._detokenizer.push(tokens), tokens, events)
            return None
        for at in range(0, len(tokens), BYTES_PER_TOKEN):
            token = tokens[at : at + BYTES_PER_TOKEN]
            stop = self._read_one(self._detokenizer.push(token), token, events)
            if stop is not None:
                return stop
        return None

    def _read_one(self, text: str, tokens: bytes, events: list[Event]) -> str | None:
        """A token, or several that the parser only passes on."""
        self.tokens += tokens
        parsed = self._parser.push(text, int.from_bytes(tokens[-BYTES_PER_TOKEN:], "little"))
        if self._parser.is_thinking:
            self._reasoning_tokens += len(tokens) // BYTES_PER_TOKEN
        return self._scan(parsed, events) if parsed else None

    def _scan(self, parsed: Sequence[Event], events: list[Event]) -> str | None:
        for event in parsed:
            if isinstance(event, TextDelta):
                text, stop = self._scanner.push(event.text)
                if text:
                    events.append(TextDelta(text))
                if stop is not None:
                    return stop
                continue
            if held := self._scanner.finish():
                events.append(TextDelta(held))
            self._called |= isinstance(event, CallEnd)
            events.append(event)
        return None

    def _ending(self, delta: TokenDelta) -> Ending:
        match delta.finish_reason:
            case "stop":
                return Ending("tool_use" if self._called else "end")
            case "length":
                return Ending("length")
            case _:
                raise ReplicaDied(f"the engine ended the generation: {delta.finish_reason}")

    def _scored(self, said: TokenLogprob) -> ScoredToken:
        top = tuple((self._piece(token), logprob) for token, logprob in said.top)
        return ScoredToken(self._piece(said.token), said.logprob, top)

    def _piece(self, token: int) -> bytes:
        return self._vocabulary.bytes_of(token.to_bytes(BYTES_PER_TOKEN, "little"))
