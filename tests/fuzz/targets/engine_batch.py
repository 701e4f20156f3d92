"""An engine's event stream: a relay answers every batch with a verdict, stays consistent, and never shows too much."""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from router.index import Index
from router.limits import MAX_VERDICT_REASONS
from tests.fuzz.draw import Draw
from tests.workers.support import CLEARED, payload, removed, stored
from workers.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RAW, BUILT = b"\x00", b"\x01"
HEAD: Final = struct.Struct("<BH")  # step of the number, length of the payload
MAX_BATCHES: Final = 24
MEDIA: Final = ("GPU", "GPU", "CPU", "STORAGE", None, "TAPE")
LOSING: Final = ({"type": "TierCleared", "tier": "CPU"}, ["PoolReset", 1], {"type": "Pinned"}, CLEARED)


def run(data: bytes) -> None:
    draw = Draw(data)
    built = draw.below(2)
    relay, index = Relay(model="m"), Index()
    index.add("r", pool_blocks=10_000)
    announced, seq = 0, -1
    for _ in range(MAX_BATCHES):
        if draw.is_spent:
            break
        step, batch = _built(draw) if built else _raw(draw)
        seq = max(0, seq + step)
        verdict = relay.apply(seq, batch)
        assert verdict.verdict in {"applied", "partly", "rejected"}
        assert len(verdict.reasons) <= MAX_VERDICT_REASONS
        index.apply("r", verdict.ops)
        announced += len(batch)
        _check(relay, index, announced)


def seeds() -> Iterator[bytes]:
    prompt = stored([11, 12, 13], [1, 2, 3, 4, 5, 6])
    branch = stored([21], [7, 8], parent_block_hash=12, medium="CPU")
    batches = [
        payload(prompt, branch),
        payload(removed([12])),
        payload(stored([12], [3, 4], parent_block_hash=11)),
        payload(stored([31], [9, 9], parent_block_hash=99), ["AllBlocksCleared"]),
        payload(["BlockStored", [41, 42], None, [1, 2, 3, 4], 2, None, "GPU", None, [["salt"], None]]),
        payload({"type": "BlocksEvicted", "tier": "CPU"}, removed([21], medium="CPU"), rank=None),
    ]
    yield RAW + b"".join(HEAD.pack(1, len(batch)) + batch for batch in batches)
    for batch in batches:
        yield RAW + HEAD.pack(1, len(batch)) + batch
    for salt in range(8):
        yield BUILT + bytes((at * (2 * salt + 3) + salt) % 251 for at in range(120))


def recorded(fixtures: Path) -> Iterator[bytes]:
    """Each recording as a stream of its first batches, and each batch of it alone."""
    for path in sorted((fixtures / "kv_events").glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        frames = [line["frames"] for line in lines if "frames" in line]
        batches = [base64.b64decode(parts[-1]) for parts in frames if parts]
        framed = [HEAD.pack(1, len(batch)) + batch for batch in batches if len(batch) < 65_536]
        yield RAW + b"".join(framed[:MAX_BATCHES])
        yield from (RAW + one for one in framed)


def _check(relay: Relay, index: Index, announced: int) -> None:
    relay.check_integrity()
    index.check_integrity()
    held = {"gpu": set[int](), "cpu": set[int](), "disk": set[int]()}
    for medium, hashes in relay.snapshot():
        held[medium].update(hashes)
    # Two engine hashes may name the same content: the router then forgets it with the first of them. Never the reverse.
    assert all(shown <= held[medium] for medium, shown in index.resident("r").items())
    assert sum(map(len, held.values())) <= announced, "a block costs at least a byte to announce"


def _raw(draw: Draw) -> tuple[int, bytes]:
    step, length = HEAD.unpack(draw.take(HEAD.size).ljust(HEAD.size, b"\x00"))
    return step if step < 4 else -step, draw.take(length)


def _built(draw: Draw) -> tuple[int, bytes]:
    step = draw.one_of((1, 1, 1, 1, 1, 1, 2, -100))
    events = draw.sequence(4, lambda: _event(draw))
    if draw.one_in(16):
        return step, draw.take(draw.below(32))
    if draw.one_in(4):
        return step, msgspec.msgpack.encode({"ts": 1.0, "events": events, "data_parallel_rank": draw.below(2)})
    return step, payload(*events, rank=draw.one_of((0, 0, None, 1)))


def _event(draw: Draw) -> Any:
    kind = draw.below(8)
    event: Any
    if kind < 4:
        event = _stored(draw)
    elif kind < 7:
        fields = {"medium": draw.one_of(MEDIA), "group_idx": draw.below(3) // 2}
        event = removed(_hashes(draw), **fields)
    else:
        event = draw.one_of(LOSING)
    if draw.one_in(8):
        return draw.damaged(event) if isinstance(event, dict) else draw.value()
    return [event["type"], *list(event.values())[1:]] if isinstance(event, dict) and draw.one_in(4) else event


def _stored(draw: Draw) -> dict[str, Any]:
    """Mostly blocks that an engine could announce: a few hashes, of which each names the same tokens every time."""
    hashes = _hashes(draw)
    fields: dict[str, Any] = {
        "parent_block_hash": draw.one_of((None, None, 1, 2, 3, 4, 5, 6, 7, 8)),
        "medium": draw.one_of(MEDIA),
        "group_idx": draw.one_of((0, 0, 0, 1)),
        "block_size": 2,
    }
    if draw.one_in(8):
        fields["kv_cache_spec_kind"] = draw.one_of((None, "sliding_window", "mla_attention"))
    if draw.one_in(8):
        fields["lora_name"] = "fr"
    if draw.one_in(8):
        fields["extra_keys"] = [[draw.one_of(("salt", 7, b"image"))] for _ in hashes]
    return stored(hashes, [token for one in hashes for token in (one, one)], **fields)


def _hashes(draw: Draw) -> list[int]:
    return draw.sequence(4, lambda: 1 + draw.below(9))
