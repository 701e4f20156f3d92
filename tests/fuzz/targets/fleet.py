"""A hostile replica in a live fleet: it is counted, bounded, cannot touch its peer, and heals when it starts anew."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import msgpack

from router.errors import WireError
from router.fleet import Action, Fleet, PromptBlocks, ReplicaInfo
from router.limits import INDEX_MARGIN_BLOCKS, TICK_INTERVAL_S
from router.wire import (
    HASH_BYTES,
    Frame,
    Load,
    SnapshotChunk,
    Stored,
    decode_chunk,
    decode_frame,
    decode_snapshot_request,
    encode_chunk,
    encode_frame,
)
from tests.fuzz.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POOL_BLOCKS: Final = 64
HELD: Final = tuple(range(1, 41))
IDLE: Final = Load(0, 0, 0, POOL_BLOCKS, POOL_BLOCKS)
PROMPT: Final = PromptBlocks(16 * len(HELD) + 5, {16: HELD, 32: HELD[:20]})
MAX_STEPS: Final = 24
HEALED_WITHIN_S: Final = 5.0
FRAME: Final = msgpack.unpackb(encode_frame(Frame("bad", "i", 0, 1.5, (), IDLE, 16)))
CHUNK: Final = msgpack.unpackb(encode_chunk(SnapshotChunk("bad", "i", 0, 0, 1, 16, ()), nonce=0))


class Scene:
    """A replica that is good, one that turns bad, and what both are asked."""

    def __init__(self) -> None:
        self.fleet, self.now, self.nonce, self.seq = Fleet(model="m"), 0.0, 0, 0
        self.received = 0  # bytes
        for name in ("good", "bad"):
            self.obey(self.fleet.join(info(name), self.now))
            self.fleet.on_chunk(name, self.snapshot(name), self.now)
            self.fleet.on_frame(name, heartbeat(name), self.now)
        self.fleet.check_integrity()

    def obey(self, actions: list[Action]) -> None:
        for action in actions:
            self.nonce = decode_snapshot_request(action.request)

    def snapshot(self, name: str, incarnation: str = "i") -> bytes:
        return encode_chunk(SnapshotChunk(name, incarnation, 0, 0, 1, 16, (Stored("gpu", HELD),)), nonce=self.nonce)

    def wait(self, seconds: float) -> None:
        """Time passes; the good one beats."""
        self.now += seconds
        self.fleet.on_frame("good", heartbeat("good"), self.now)
        self.obey(self.fleet.tick(self.now))

    def hostile(self, message: bytes, *, is_chunk: bool) -> None:
        """One message, which is decoded or counted, and bounded whatever it says."""
        before = bad_messages(self.fleet)
        take, decode = (self.fleet.on_chunk, decode_chunk) if is_chunk else (self.fleet.on_frame, decode_frame)
        actions = take("bad", message, self.now)
        self.obey(actions)
        is_bad = not is_addressed(decode, message)
        assert bad_messages(self.fleet) == before + is_bad
        assert not (is_bad and actions)
        self.received += len(message)
        held = self.fleet.resident("bad")
        assert len(held["gpu"]) <= POOL_BLOCKS + INDEX_MARGIN_BLOCKS
        assert sum(map(len, held.values())) <= len(HELD) + self.received // HASH_BYTES
        self.fleet.check_integrity()

    def heal(self, incarnation: str) -> None:
        """Starts anew, with good frames and good answers."""
        end = self.now + HEALED_WITHIN_S
        self.obey(self.fleet.on_frame("bad", heartbeat("bad", incarnation), self.now))
        while self.fleet.fenced("bad") and self.now < end:
            self.obey(self.fleet.on_chunk("bad", self.snapshot("bad", incarnation), self.now))
            self.wait(TICK_INTERVAL_S)
            self.obey(self.fleet.on_frame("bad", heartbeat("bad", incarnation), self.now))


def run(data: bytes) -> None:
    draw, scene = Draw(data), Scene()
    for _ in range(MAX_STEPS):
        if draw.is_spent:
            break
        match draw.below(4):
            case 0:
                scene.wait(draw.one_of((0.1, 0.3, 1.0)))
            case 1:
                scene.hostile(draw.take(draw.below(200)), is_chunk=draw.one_in(2))
            case 2:
                scene.hostile(msgpack.packb(_chunk(draw, scene.nonce)), is_chunk=True)
            case _:
                scene.hostile(msgpack.packb(_frame(draw, scene)), is_chunk=False)
        assert not scene.fleet.fenced("good")
        assert scene.fleet.resident("good")["gpu"] == frozenset(HELD)
    unheard_of = "new"
    while unheard_of.encode() in data:
        unheard_of += "er"
    scene.heal(unheard_of)
    assert not scene.fleet.fenced("bad"), scene.fleet.status(scene.now)
    assert scene.fleet.resident("bad") == scene.fleet.resident("good")
    decision = scene.fleet.choose(PROMPT, scene.now)
    assert {score.cached_tokens for score in decision.scores} == {16 * len(HELD)}


def seeds() -> Iterator[bytes]:
    yield b""
    for message in (heartbeat("bad"), encode_frame(Frame("bad", "i", 1, 1.5, (Stored("gpu", (99,)),), IDLE, 16))):
        yield b"\x01" + bytes([len(message)]) + message + b"\x00"
    for step in (3, 5, 7, 11, 13):
        yield bytes((at * step + step) % 256 for at in range(160))


def recorded(fixtures: Path) -> Iterator[bytes]:
    """Frames are ours alone: nobody else records them."""
    yield from ()


def info(name: str) -> ReplicaInfo:
    return ReplicaInfo(
        replica=name,
        incarnation="i",
        model="m",
        block_size=16,
        pool_blocks=POOL_BLOCKS,
        max_model_len=4_096,
        events="tcp://127.0.0.1:1",
        snapshots="tcp://127.0.0.1:2",
    )


def heartbeat(name: str, incarnation: str = "i") -> bytes:
    return encode_frame(Frame(name, incarnation, 0, 1.5, (), IDLE, 16))


def bad_messages(fleet: Fleet) -> int:
    return sum(member.bad_messages for member in fleet._members.values())


def is_addressed(decode: Any, message: bytes) -> bool:
    """Whether the decoder takes it, and it is the bad replica's own."""
    try:
        decoded = decode(message)
    except WireError:
        return False
    one = decoded[0] if isinstance(decoded[0], SnapshotChunk) else decoded
    return bool(one.replica == "bad")


def _frame(draw: Draw, scene: Scene) -> dict[str, Any]:
    scene.seq = draw.one_of((scene.seq + 1, scene.seq + 1, scene.seq + 2, 0, -1, 2**53, scene.seq))
    fields = {
        "replica": "good" if draw.one_in(16) else "bad",
        "incarnation": draw.one_of(("i", "i", "i", "j", "k")),
        "seq": scene.seq,
        "block_size": 32 if draw.one_in(8) else 16,
        "ops": draw.sequence(3, lambda: _op(draw)),
    }
    return draw.damaged(FRAME | fields)


def _op(draw: Draw) -> list[Any]:
    kind = draw.below(5)
    if kind == 4:
        return ["cleared"]
    return [("stored", "stored", "removed", "stored")[kind], *_run(draw)]


def _run(draw: Draw) -> list[Any]:
    start, length = draw.below(50), 1 + draw.below(40)
    if draw.one_in(8):
        length = POOL_BLOCKS + INDEX_MARGIN_BLOCKS + 1
    packed = array("Q", range(start, start + length)).tobytes()
    return [draw.one_of(("gpu", "gpu", "cpu", "disk")), packed]


def _chunk(draw: Draw, nonce: int) -> dict[str, Any]:
    count = 1 + draw.below(3)
    fields = {
        "replica": "good" if draw.one_in(16) else "bad",
        "incarnation": draw.one_of(("i", "i", "j")),
        "nonce": max(0, nonce - draw.below(3)),
        "seq": draw.one_of((0, -1, 1, 2, 2**53)),
        "index": draw.below(3) % count,
        "count": count,
        "block_size": 32 if draw.one_in(8) else 16,
        "blocks": draw.sequence(2, lambda: _run(draw)),
    }
    return draw.damaged(CHUNK | fields)
