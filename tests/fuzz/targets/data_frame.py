"""Frames of the data plane: what decodes encodes to the same again, however it was cut; all else is a `WireError`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from router.errors import WireError
from tests.fuzz.draw import Draw
from workers import data_frames as frames
from workers.engine import Generation, Sampling, Structured, TokenDelta, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RAW, BUILT = b"\x00", b"\x01"
ALLOWED: Final = {**frames.FROM_STRANGER, **frames.FROM_INGRESS, **frames.FROM_REPLICA}
ASKED: Final = Generation(
    request_id="r",
    tokens=bytes(range(8)),
    sampling=Sampling(max_tokens=3, logit_bias=((1, 0.5),), structured=Structured(kind="regex", spec="a+")),
)
SAID: Final = TokenDelta(
    tokens=bytes(4), cached_tokens=16, finish_reason="stop", logprobs=(TokenLogprob(1, -0.5, ((2, -1.0),)),)
)


def run(data: bytes) -> None:
    draw = Draw(data)
    stream = _built(draw) if draw.below(2) else draw.rest()
    whole, cut = frames.FrameReader(ALLOWED), frames.FrameReader(ALLOWED)
    try:
        messages = whole.feed(stream)
    except WireError:
        return
    middle = len(stream) // 2
    assert cut.feed(stream[:middle]) + cut.feed(stream[middle:]) == messages
    for message in messages:
        with contextlib.suppress(WireError):
            _decode(message)


def seeds() -> Iterator[bytes]:
    yield RAW + frames.encode_open(7, ASKED) + frames.encode_frame(frames.CANCEL, 7)
    yield RAW + frames.encode_delta(1, SAID) + frames.encode_delta(2, TokenDelta())
    yield RAW + frames.encode_error(3, RuntimeError()) + frames.encode_frame(frames.PAUSE, 3)
    yield BUILT + bytes(range(24))


def recorded(fixtures: Path) -> Iterator[bytes]:
    """Frames are ours alone: nobody else records them."""
    yield from ()


def _decode(message: frames.Message) -> None:
    if message.kind == frames.OPEN:
        asked = frames.decode_open(message.body)
        again = frames.decode_open(_body(frames.encode_open(1, asked)))
        assert repr(again) == repr(asked)  # by its text: NaN is not equal to itself
    elif message.kind == frames.DELTA:
        said = frames.decode_delta(message.body)
        assert repr(frames.decode_delta(_body(frames.encode_delta(1, said)))) == repr(said)
    elif message.kind == frames.ERROR:
        fault = frames.decode_error(message.body)
        assert str(frames.decode_error(_body(frames.encode_error(1, fault)))) == str(fault)


def _body(frame: bytes) -> bytes:
    return frames.FrameReader(ALLOWED).feed(frame)[0].body


def _built(draw: Draw) -> bytes:
    return b"".join(draw.sequence(3, lambda: _frame(draw)))


def _frame(draw: Draw) -> bytes:
    kind = draw.one_of((frames.OPEN, frames.DELTA, frames.ERROR, frames.RESUME))
    if kind == frames.OPEN:
        control = msgspec.msgpack.encode(_changed(draw, ASKED))
        body = len(control).to_bytes(4, "little") + control + draw.take(4 * draw.below(3))
        return frames.encode_frame(kind, draw.below(256), body)
    if kind == frames.DELTA:
        return frames.encode_frame(kind, 1, msgspec.msgpack.encode(_changed(draw, SAID)))
    return frames.encode_frame(kind, 1, draw.take(draw.below(24)))


def _changed(draw: Draw, struct: msgspec.Struct) -> dict[str, Any]:
    return draw.damaged(msgspec.to_builtins(struct, builtin_types=(bytes,)))
