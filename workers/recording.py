"""Recorded engine frames through the real relay, offline: what was made of each message, and what is resident then.

A recording is a list of ZMQ messages as base64 frames, one JSON object per line, as an operator or a test wrote them
down. Two kinds of file:
* a stream: live messages in order (several streams when lines name a `variant`), replayed ones where live ones lack;
* a file of cases: `setup`, then each case, then `follow_up`, on a fresh replica for every case.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import msgspec

from router.errors import InvalidRequest, WireError
from workers.engine import EventBatch
from workers.relay import Relay, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SEQ_BYTES: Final = 8
END_SEQ: Final = b"\xff" * SEQ_BYTES
ENGINE_MEDIUM: Final = {"gpu": "GPU", "cpu": "CPU", "disk": "STORAGE"}
SETUP, FOLLOW_UP = "setup", "follow_up"


class Line(msgspec.Struct):
    """What a recording's line may say; other fields are ignored."""

    frames: list[str]
    socket: str = "live"
    variant: str = ""
    id: str = ""


def read_message(frames: Sequence[bytes]) -> EventBatch | None:
    """A message of an engine's event socket: topic, number, payload; replayed ones begin with an empty frame, and in
    older versions have no topic. None for the end of a replay. Raises `WireError` for anything else."""
    body = frames[1:] if frames and frames[0] == b"" else frames
    if not 2 <= len(body) <= 3 or (body is frames and len(body) == 2):
        raise WireError(f"a message of {len(frames)} frames")
    number, payload = body[-2], body[-1]
    if number == END_SEQ and body is not frames:
        return None
    if len(number) != SEQ_BYTES:
        raise WireError(f"a sequence number of {len(number)} bytes")
    return EventBatch(int.from_bytes(number, "big"), payload)


def parse(lines: Iterable[str], *, where: str) -> list[Line]:
    """The lines of a recording. Raises `InvalidRequest` with the line's number."""
    parsed = []
    for number, text in enumerate(lines, 1):
        if text.strip():
            try:
                parsed.append(msgspec.json.decode(text, type=Line))
            except msgspec.DecodeError as fault:
                raise InvalidRequest(f"{where}:{number}: not a recorded message: {fault}") from None
    return parsed


def replay(lines: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """One row per message of a stream, or per case of a file of cases."""
    if any(line.id == SETUP for line in lines):
        yield from _replay_cases(lines)
        return
    relay, seen, variant = Relay(model=""), set[int](), None
    for line in lines:
        if line.variant != variant:
            relay, seen, variant = Relay(model=""), set(), line.variant
        batch = _batch(line)
        if line.socket != "live" and (batch is None or (isinstance(batch, EventBatch) and batch.seq in seen)):
            continue  # the end of a replay, or a batch that was recorded live as well
        row = _row(relay, batch)
        seen.add(row["seq"])
        yield {"variant": variant, **row} if variant else row


def _replay_cases(lines: Sequence[Line]) -> Iterator[dict[str, Any]]:
    by_id = {line.id: line for line in lines}
    if FOLLOW_UP not in by_id:
        raise InvalidRequest("a file of cases needs a line with id follow_up besides the one with id setup")
    alone = Relay(model="")
    _row(alone, _batch(by_id[SETUP]))
    before = _residents(alone)
    _row(alone, _batch(by_id[FOLLOW_UP], seq=1))
    expected = _residents(alone) - before
    for line in lines:
        if line.id in {SETUP, FOLLOW_UP}:
            continue
        relay = Relay(model="")
        _row(relay, _batch(by_id[SETUP]))
        row = _row(relay, _batch(line))
        follow = _row(relay, _batch(by_id[FOLLOW_UP]))
        ok = follow["verdict"] != "rejected" and expected <= _residents(relay)
        yield {"id": line.id, **row, "follow_up_ok": ok}


def _batch(line: Line, *, seq: int | None = None) -> EventBatch | WireError | None:
    try:
        frames = [base64.b64decode(frame, validate=True) for frame in line.frames]
        batch = read_message(frames)
    except (WireError, ValueError) as fault:
        return WireError(str(fault))
    return EventBatch(seq, batch.payload) if seq is not None and batch is not None else batch


def _row(relay: Relay, batch: EventBatch | WireError | None) -> dict[str, Any]:
    if isinstance(batch, EventBatch):
        verdict = relay.apply(batch.seq, batch.payload)
    else:
        verdict = Verdict((), "rejected", (str(batch or "the end of a replay"),))
    resident = relay.resident().items()
    return {
        "seq": batch.seq if isinstance(batch, EventBatch) else None,
        "verdict": verdict.verdict,
        "reasons": list(verdict.reasons),
        "resident": {ENGINE_MEDIUM[tier]: sorted(map(str, hashes)) for tier, hashes in resident if hashes},
    }


def _residents(relay: Relay) -> set[int]:
    return {engine_hash for hashes in relay.resident().values() for engine_hash in hashes}
