"""A client that costs little beside what it measures: ready-made bodies out, the times of a stream in.

It knows HTTP/1.1 and Messages streams just well enough to see where an answer begins and ends.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
from typing import Final, NamedTuple

from router.errors import KvistError

DELTA: Final = b"event: content_block_delta"
STOP: Final = b"event: message_stop"
LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
KEPT_WORDS: Final = 400
_ID = re.compile(rb'"id": ?"msg_([0-9A-Za-z-]+)"')
_TIMING = re.compile(rb"(?i)server-timing: ([^\r]*)")
_STAGE = re.compile(r"([\w-]+);dur=([\d.]+)")


class StreamFailed(KvistError):
    """A server did not answer a request of the bench as it should: a run with holes is no measure."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


class Seen(NamedTuple):
    """What one request showed; times are `time.monotonic` seconds. `deltas` are events with text, as they arrived."""

    request_id: str
    sent_s: float
    first_s: float
    ended_s: float
    deltas: int
    stages_ms: dict[str, float]

    @property
    def ttft_ms(self) -> float:
        """From the first byte sent to the first text."""
        return (self.first_s - self.sent_s) * 1e3


class Caller(asyncio.Protocol):
    """One connection, kept open, one request at a time. With `quick_ack` the kernel acknowledges what comes at once,
    which hides what a server's small writes would otherwise cost (Nagle's algorithm against delayed acknowledgement).
    """

    def __init__(self, address: Address, *, quick_ack: bool) -> None:
        self._address = address
        self._quick_ack = quick_ack
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None

    async def ask(self, body: bytes) -> Seen:
        """Send and wait for the end of the answer. Raises `StreamFailed`."""
        if self._transport is None or self._transport.is_closing():
            await asyncio.get_running_loop().create_connection(lambda: self, *self._address)
        assert self._transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._head = self._tail = b""
        self._first_s, self._deltas, self._has_stopped = 0.0, 0, False
        data = self._request(body)
        sent_s = time.monotonic()
        self._transport.write(data)
        await self._done
        return self._seen(sent_s)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._acknowledge()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._acknowledge()
        window = self._tail + data
        found = window.count(DELTA)
        if found and not self._deltas:
            self._first_s = now
        if not self._deltas:
            self._head += data
        self._deltas += found
        self._has_stopped = self._has_stopped or STOP in window
        # What is kept is too short to hold a whole mark, so none is counted twice.
        self._tail = window[-(len(DELTA) - 1) :]
        if window.endswith(LAST_CHUNK) or (not self._deltas and self._is_refusal()):
            self._ended_s = now
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(StreamFailed(f"the connection was lost in the middle of an answer: {exc}"))

    def _acknowledge(self) -> None:
        if self._quick_ack:  # the kernel forgets it, so it is said each time
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _end(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)

    def _is_refusal(self) -> bool:
        status = self._head[:12]
        return len(status) == 12 and status[9:12] != b"200" and b"\r\n\r\n" in self._head

    def _seen(self, sent_s: float) -> Seen:
        if not self._deltas or not self._has_stopped:
            words = (self._head[:KEPT_WORDS] + b" ... " + self._tail).decode(errors="replace")
            raise StreamFailed(f"{self._address.host}:{self._address.port} did not answer as it should: {words}")
        named, timing = _ID.search(self._head), _TIMING.search(self._head)
        stages = _STAGE.findall(timing[1].decode()) if timing else []
        request_id = named[1].decode() if named else ""
        spent = {name: float(duration) for name, duration in stages}
        return Seen(request_id, sent_s, self._first_s, self._ended_s, self._deltas, spent)

    def _request(self, body: bytes) -> bytes:
        lines = (
            "POST /v1/messages?beta=true HTTP/1.1",
            f"host: {self._address.host}:{self._address.port}",
            "content-type: application/json",
            "anthropic-version: 2023-06-01",
            f"content-length: {len(body)}",
        )
        return "\r\n".join((*lines, "", "")).encode() + body
