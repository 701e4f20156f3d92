"""Recorded messages: a file gives rows, or an error that is the caller's; a message gives a batch or a `WireError`."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from router.errors import ClientError, WireError
from tests.fuzz.draw import Draw
from tests.workers.support import payload, removed, stored
from workers.recording import FOLLOW_UP, SETUP, parse, read_message, replay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RAW, BUILT = b"\x00", b"\x01"
MAX_LINES: Final = 16
MAX_COMPLAINT_CHARS: Final = 2_000
VERDICTS: Final = {"applied", "partly", "rejected"}
BATCHES: Final = (payload(stored([11, 12], [1, 2, 3, 4])), payload(removed([12])), payload(["New"]), b"\xc1", b"")


def run(data: bytes) -> None:
    draw = Draw(data)
    if draw.below(2):
        _check_message(draw.sequence(5, lambda: draw.take(draw.below(12))))
        text = "\n".join(json.dumps(_line(draw)) for _ in range(draw.below(8)))
    else:
        text = draw.rest().decode("utf-8", "replace")
    try:
        rows = list(replay(parse(text.split("\n")[:MAX_LINES], where="fuzz")))
    except ClientError as error:
        complaint, rows = str(error), []
    else:
        complaint = ""
    assert len(complaint) < MAX_COMPLAINT_CHARS
    for row in rows:
        assert row["verdict"] in VERDICTS
        assert json.loads(json.dumps(row))["reasons"] == row["reasons"]


def seeds() -> Iterator[bytes]:
    lines = [_text(seq, batch) for seq, batch in enumerate(BATCHES)]
    yield RAW + "\n".join(lines).encode()
    cases = [_text(0, BATCHES[0], id=SETUP), _text(1, BATCHES[1], id="a"), _text(2, BATCHES[0], id=FOLLOW_UP)]
    yield RAW + "\n".join(cases).encode()
    yield RAW + "\n".join(_text(seq, BATCHES[0], variant=f"v{seq}") for seq in range(3)).encode()
    yield RAW + "\n".join([lines[0], _text(0, BATCHES[0], socket="replay"), lines[1]]).encode()
    yield BUILT + bytes(range(1, 60))
    yield BUILT + bytes(range(60, 1, -1))


def recorded(fixtures: Path) -> Iterator[bytes]:
    """Each recording, cut into stretches."""
    for path in sorted((fixtures / "kv_events").glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for start in range(0, len(lines), MAX_LINES):
            yield RAW + "\n".join(lines[start : start + MAX_LINES]).encode()


def _check_message(frames: list[bytes]) -> None:
    try:
        batch = read_message(frames)
    except WireError:
        return
    assert batch is None or (0 <= batch.seq < 2**64 and batch.payload == frames[-1])


def _text(seq: int, batch: bytes, **fields: str) -> str:
    frames = [base64.b64encode(part).decode() for part in (b"kv", seq.to_bytes(8, "big"), batch)]
    return json.dumps({"frames": frames, **fields})


def _line(draw: Draw) -> dict[str, Any]:
    frames: list[Any] = [b"", b"kv", draw.below(6).to_bytes(8, "big"), draw.one_of(BATCHES)][draw.below(2) :]
    line: dict[str, Any] = {"frames": [base64.b64encode(part).decode() for part in frames]}
    line |= {"socket": draw.one_of(("live", "replay")), "variant": draw.one_of(("", "", "v"))}
    line["id"] = draw.one_of(("", "a", SETUP, FOLLOW_UP))
    if draw.one_in(4):
        line["frames"] = draw.one_of(([], ["é"], ["*"], [""], ["a"], [""] * 3))
    if draw.one_in(8):
        line[draw.one_of(sorted(line))] = draw.one_of((None, 7, [], "x", {}, [7], [None]))
    return line
