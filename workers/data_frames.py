"""Frames of the data plane, between an ingress and a replica: a header, then a body, many streams on one connection.

Header: length of the body (u32), kind (u8), stream (u32), little-endian. Control parts are msgpack of the engine's own
structs; prompts are raw u32 tokens behind theirs. Errors travel as a kind and a text, never as pickled objects.

Decoders take hostile bytes: a body's length is checked before it is waited for, and only `WireError` leaves them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from router.errors import ClientError, InvalidRequest, KvistBug, ReplicaDied, ReplicaGone, WireError
from router.hashing import BYTES_PER_TOKEN
from router.limits import MAX_COUNT, MAX_DATA_DELTA_BYTES, MAX_DATA_ERROR_CHARS, MAX_DATA_OPEN_BYTES
from workers.engine import Generation, TokenDelta

if TYPE_CHECKING:
    from collections.abc import Mapping

CHALLENGE: Final = 1
HELLO: Final = 2
WELCOME: Final = 3
OPEN: Final = 4
CANCEL: Final = 5
PAUSE: Final = 6
RESUME: Final = 7
DELTA: Final = 8
REFUSED: Final = 9
ERROR: Final = 10

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
MAX_STREAM: Final = 2**32 - 1

# The longest body of each kind that a side may send, before it has proven itself and after.
FROM_STRANGER: Final[Mapping[int, int]] = {HELLO: NONCE_BYTES + PROOF_BYTES}
FROM_INGRESS: Final[Mapping[int, int]] = {OPEN: MAX_DATA_OPEN_BYTES, CANCEL: 0, PAUSE: 0, RESUME: 0}
FROM_REPLICA: Final[Mapping[int, int]] = {
    CHALLENGE: NONCE_BYTES,
    WELCOME: PROOF_BYTES,
    DELTA: MAX_DATA_DELTA_BYTES,
    REFUSED: 0,
    ERROR: 8 * MAX_DATA_ERROR_CHARS,
}

UNEXPECTED: Final = "the replica failed while serving the request"

_HEADER: Final = struct.Struct("<IBI")
_LENGTH: Final = struct.Struct("<I")
_FOREIGN: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


class Message(NamedTuple):
    """One frame."""

    kind: int
    stream: int
    body: bytes


class _Fault(msgspec.Struct, frozen=True):
    kind: Literal["invalid", "died", "gone"]
    text: str


_encode: Final = msgspec.msgpack.Encoder().encode
_generation: Final = msgspec.msgpack.Decoder(Generation).decode
_delta: Final = msgspec.msgpack.Decoder(TokenDelta).decode
_fault: Final = msgspec.msgpack.Decoder(_Fault).decode


_ERRORS: Final[Mapping[str, type[InvalidRequest | ReplicaDied]]] = {
    "invalid": InvalidRequest,
    "died": ReplicaDied,
    "gone": ReplicaGone,
}


class FrameReader:
    """Cuts a byte stream into frames of the kinds that `allowed` maps to their longest body.

    It holds at most one unfinished frame besides what it was just fed.
    """

    def __init__(self, allowed: Mapping[int, int]) -> None:
        self.allowed = allowed
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The frames that `data` completes. Raises `WireError` for a kind or length that is not allowed."""
        if not self._held:
            found, rest = self._cut(data)
            self._held += data[rest:]
            return found
        self._held += data
        with memoryview(self._held) as view:
            found, rest = self._cut(view)
        del self._held[:rest]
        return found

    def _cut(self, data: bytes | memoryview) -> tuple[list[Message], int]:
        """The whole frames, and where what follows them begins."""
        found: list[Message] = []
        at = 0
        while len(data) - at >= _HEADER.size:
            length, kind, stream = _HEADER.unpack_from(data, at)
            if length > self.allowed.get(kind, -1):
                raise WireError(f"frame: kind {kind} of {length} bytes is not allowed here")
            end = at + _HEADER.size + length
            if end > len(data):
                break
            found.append(Message(kind, stream, bytes(data[at + _HEADER.size : end])))
            at = end
        return found, at


def encode_frame(kind: int, stream: int = 0, body: bytes = b"") -> bytes:
    """Bytes of a frame whose body is ready."""
    return _HEADER.pack(len(body), kind, stream) + body


def encode_open(stream: int, generation: Generation) -> bytes:
    """Bytes that ask for a generation. Raises `KvistBug` above MAX_DATA_OPEN_BYTES."""
    control = _encode(msgspec.structs.replace(generation, tokens=b""))
    length = _LENGTH.size + len(control) + len(generation.tokens)
    if length > MAX_DATA_OPEN_BYTES:
        raise KvistBug(f"a generation of {length} bytes is over MAX_DATA_OPEN_BYTES")
    header = _HEADER.pack(length, OPEN, stream) + _LENGTH.pack(len(control))
    return b"".join((header, control, generation.tokens))


def decode_open(body: bytes) -> Generation:
    """The generation that is asked for. Raises `WireError` for anything else."""
    if len(body) < _LENGTH.size:
        raise WireError("generation: too short")
    tokens_at = _LENGTH.size + _LENGTH.unpack_from(body)[0]
    if tokens_at > len(body) or (len(body) - tokens_at) % BYTES_PER_TOKEN:
        raise WireError("generation: not a control part and packed tokens")
    try:
        control = _generation(memoryview(body)[_LENGTH.size : tokens_at])
    except _FOREIGN as error:
        raise WireError(f"generation: {type(error).__name__}") from None
    if not 0 <= control.resumed_tokens <= (len(body) - tokens_at) // BYTES_PER_TOKEN:
        raise WireError("generation: more of the prompt was generated than there is")
    return msgspec.structs.replace(control, tokens=body[tokens_at:])


def encode_delta(stream: int, delta: TokenDelta) -> bytes:
    """Bytes of new tokens. Raises `KvistBug` above MAX_DATA_DELTA_BYTES."""
    body = _encode(delta)
    if len(body) > MAX_DATA_DELTA_BYTES:
        raise KvistBug(f"a delta of {len(body)} bytes is over MAX_DATA_DELTA_BYTES")
    return _HEADER.pack(len(body), DELTA, stream) + body


def decode_delta(body: bytes) -> TokenDelta:
    """The new tokens. Raises `WireError` for anything else."""
    try:
        delta = _delta(body)
    except _FOREIGN as error:
        raise WireError(f"delta: {type(error).__name__}") from None
    if len(delta.tokens) % BYTES_PER_TOKEN or not 0 <= (delta.cached_tokens or 0) <= MAX_COUNT:
        raise WireError("delta: not packed tokens and a count")
    return delta


def encode_error(stream: int, fault: Exception) -> bytes:
    """Bytes that end a stream with an error. Only texts of our own errors travel, cut to MAX_DATA_ERROR_CHARS."""
    kind: Literal["invalid", "died", "gone"] = "invalid" if isinstance(fault, ClientError) else "died"
    if isinstance(fault, ReplicaGone):
        kind = "gone"
    text = str(fault) if isinstance(fault, ClientError | ReplicaDied) else UNEXPECTED
    safe = text.encode(errors="replace").decode()[:MAX_DATA_ERROR_CHARS]
    return encode_frame(ERROR, stream, _encode(_Fault(kind, safe)))


def decode_error(body: bytes) -> InvalidRequest | ReplicaDied:
    """The error, to be raised. Raises `WireError` for anything else."""
    try:
        fault = _fault(body)
    except _FOREIGN as error:
        raise WireError(f"error: {type(error).__name__}") from None
    return _ERRORS[fault.kind](fault.text)
