"""A streamed answer, from the bytes as they come: when it spoke, what it said, how it ended. No clock of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from load_tests.stream_events import READERS
from load_tests.swarm.answer_blocks import AnswerBlocks

if TYPE_CHECKING:
    from load_tests.client import Api

DATA: Final = b"data:"
DONE: Final = b"[DONE]"
MAX_LINE_BYTES: Final = 2**22
"""A line without end is no stream of events."""


class StreamReader:
    """Bytes and the time they came at go in by `feed`; the attributes say what was seen so far.

    `pieces` counts events with something generated. `error` is the class of what went wrong, None while all is well.
    """

    def __init__(self, api: Api) -> None:
        self._read = READERS[api]
        self._decoder = msgspec.json.Decoder(dict[str, Any])
        self._rest = b""
        self.answer = AnswerBlocks(api)
        self.pieces = 0
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.longest_gap_s = 0.0
        self.usage: dict[str, int] = {}
        self.error: str | None = None
        self.is_complete = False

    def __repr__(self) -> str:
        return f"<StreamReader {self.pieces} pieces, complete={self.is_complete}, error={self.error}>"

    def feed(self, data: bytes, now_s: float) -> None:
        """Take what arrived at `now_s`. Lines may be cut anywhere."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                self._line(line[len(DATA) :].strip(), now_s)
        if len(self._rest) > MAX_LINE_BYTES:
            self.error = self.error or "bad_stream"
            self._rest = b""

    def finish(self) -> None:
        """No more comes: an answer without its last event was cut off."""
        if not self.is_complete and self.error is None:
            self.error = "truncated"

    def _line(self, data: bytes, now_s: float) -> None:
        if data == DONE or not data:
            self.is_complete = self.is_complete or data == DONE
            return
        try:
            decoded = self._decoder.decode(data)
            event = self._read(decoded)
            self.answer.take(decoded)
        except (msgspec.DecodeError, AttributeError, KeyError, TypeError):
            self.error = self.error or "bad_stream"
            return
        if event.error is not None:
            self.error = self.error or "stream_error"
        self.usage |= event.usage
        self.is_complete = self.is_complete or event.is_last
        if event.has_token:
            self._token(now_s)

    def _token(self, now_s: float) -> None:
        self.pieces += 1
        if self.last_s is None:
            self.first_s = now_s
        else:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_s)
        self.last_s = now_s
