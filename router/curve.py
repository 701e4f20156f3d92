"""CURVE on the event sockets: who has no key of this cluster neither hears events nor is heard.

Optional: without keys the sockets are plain, as on one machine's loopback. Keys are ZMQ's Z85 text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

if TYPE_CHECKING:
    from collections.abc import Iterable

DOMAIN: Final = "kvist"


class CurveKeys(msgspec.Struct, frozen=True):
    """One key pair. The secret half stays in the process that was given it."""

    public: str
    secret: str

    @classmethod
    def generate(cls) -> CurveKeys:
        """A new pair."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    def __repr__(self) -> str:
        return f"CurveKeys({self.public})"


class ServerCurve(msgspec.Struct, frozen=True):
    """For the side that binds: its keys, and the public keys of those who may connect."""

    keys: CurveKeys
    allowed: frozenset[str]


class ClientCurve(msgspec.Struct, frozen=True):
    """For the side that connects: its keys, and the public key that the other side must prove to have."""

    keys: CurveKeys
    server_public: str


class AllowList:
    """Answers ZMQ's question, for one context, whether a key may connect. Runs a thread of its own until stopped."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: Iterable[str]) -> None:
        self._allowed = frozenset(key.encode() for key in allowed)
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(DOMAIN, credentials_provider=self)

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by ZMQ's authenticator with a client's public key, as Z85 text."""
        del domain
        return key in self._allowed

    def stop(self) -> None:
        """End the thread. Call before the context ends."""
        self._authenticator.stop()


def bind_with(socket: zmq.Socket[bytes], curve: ServerCurve) -> None:
    """Make a socket ask for keys. Call before it binds; its context needs an `AllowList`."""
    socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt_string(zmq.CURVE_SECRETKEY, curve.keys.secret)
    socket.setsockopt_string(zmq.CURVE_PUBLICKEY, curve.keys.public)
    socket.setsockopt(zmq.CURVE_SERVER, 1)


def connect_with(socket: zmq.Socket[bytes], curve: ClientCurve) -> None:
    """Make a socket show its keys, and insist on the server's. Call before it connects."""
    socket.setsockopt_string(zmq.CURVE_SECRETKEY, curve.keys.secret)
    socket.setsockopt_string(zmq.CURVE_PUBLICKEY, curve.keys.public)
    socket.setsockopt_string(zmq.CURVE_SERVERKEY, curve.server_public)
