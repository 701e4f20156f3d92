"""What both ends of a data plane connection share: frames in, frames out, one write per turn of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import socket
from typing import TYPE_CHECKING, Any, Final, cast

from router.errors import WireError
from router.limits import DATA_SILENCE_MS, DATA_WRITE_HIGH_BYTES
from workers.data_frames import FrameReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.data_frames import Message

logger = logging.getLogger("ray.serve")

KEEPALIVE_S: Final = 1
KEEPALIVE_PROBES: Final = DATA_SILENCE_MS // 1000 // KEEPALIVE_S


class DataLink(asyncio.Protocol):
    """One end of a connection. Subclasses take messages in `on_message` and hear of the end in `on_lost`.

    What is sent within one turn of the loop leaves in one write. `writable` is cleared while more than
    DATA_WRITE_HIGH_BYTES wait to be sent: whoever sends much waits for it.
    """

    def __init__(self, allowed: Mapping[int, int]) -> None:
        self.reader = FrameReader(allowed)
        self.writable = asyncio.Event()
        self.writable.set()
        self.lost = asyncio.Event()
        self._outbox: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent now."""
        return self._transport is not None and not self._transport.is_closing()

    def on_message(self, message: Message) -> None:
        """Take one frame. May raise `WireError`, which ends the connection."""
        raise NotImplementedError

    def on_lost(self) -> None:
        """The connection is gone, however. Called once."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        self._transport.set_write_buffer_limits(high=DATA_WRITE_HIGH_BYTES)
        _tune(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        try:
            for message in self.reader.feed(data):
                self.on_message(message)
        except WireError as fault:
            logger.warning("a data plane connection is closed: %s", fault)
            self.abort()

    def send(self, frame: bytes) -> None:
        """Send at the end of this turn. Nothing happens once the connection is gone."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(frame)

    def abort(self) -> None:
        """Close now; what was not sent is lost."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close when everything was sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._outbox.clear()
        self.writable.set()
        self.lost.set()
        self.on_lost()

    def _flush(self) -> None:
        if self._outbox and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._outbox[0] if len(self._outbox) == 1 else b"".join(self._outbox))
        self._outbox.clear()


def proof(secret: str, role: str, challenge: bytes, nonce: bytes) -> bytes:
    """Shows that its maker knows the secret, for this connection and this role only."""
    return hmac.digest(bytes.fromhex(secret), role.encode() + challenge + nonce, hashlib.sha256)


def _tune(raw: Any) -> None:
    """No waiting for more to send; a machine that vanished without a word is noticed."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(AttributeError):  # names of Linux
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DATA_SILENCE_MS)
