"""A replica that sends nothing but malice for as long as it likes: counted, and without any effect on the others."""

from __future__ import annotations

import random

import msgpack

from router.fleet import Fleet, PromptBlocks
from tests.fuzz.targets.fleet import FRAME, HELD, PROMPT, Scene, heartbeat

FRAMES = 20_000
PEERS = ("good", "bad")


def malformed(rng: random.Random) -> bytes:
    """One of many ways to be wrong."""
    good = bytearray(heartbeat("bad"))
    match rng.randrange(6):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1:
            return bytes(good[: rng.randrange(len(good))])
        case 2:
            return bytes(good) + rng.randbytes(1 + rng.randrange(9))
        case 3:
            wrong = {name: [None] for name in rng.sample(sorted(FRAME), 1 + rng.randrange(3))}
            return bytes(msgpack.packb(FRAME | wrong))
        case 4:
            return rng.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb")) + b"\xff" * 4 + rng.randbytes(20)
        case _:
            return heartbeat("good" if rng.randrange(2) else "stranger")  # well formed, under another's name


def decided(fleet: Fleet, now: float) -> list[tuple[tuple[str, ...], int]]:
    """Where prompts of every length go, and what is foretold of them; nothing stays reserved."""
    found = []
    for blocks in range(1, len(HELD) + 1):
        decision = fleet.choose(PromptBlocks(blocks * 16 + 5, {16: HELD[:blocks]}), now)
        fleet.finish(decision.reservation, now)
        found.append((decision.candidates, decision.predicted_cached_tokens))
    return found


def test_twenty_thousand_hostile_frames_change_neither_the_index_nor_any_decision() -> None:
    """No exception, every one counted, by half of them sent as snapshot parts; both replicas stay live and exact."""
    scene, rng = Scene(), random.Random(7)
    fleet = scene.fleet
    before, choices = {name: fleet.resident(name) for name in PEERS}, decided(fleet, scene.now)
    assert len(before["bad"]["gpu"]) == len(HELD)
    for at in range(FRAMES):
        take = fleet.on_chunk if at % 2 else fleet.on_frame
        assert take("bad", malformed(rng), scene.now) == []
    fleet.check_integrity()
    assert {name: fleet.resident(name) for name in PEERS} == before
    assert {status.replica: status.bad_messages for status in fleet.status(scene.now)} == {"good": 0, "bad": FRAMES}
    assert decided(fleet, scene.now) == choices
    assert not fleet.fenced("good")
    assert not fleet.fenced("bad")


def test_hostile_frames_of_a_stranger_are_not_even_counted() -> None:
    """Nobody can fill a table with names that were never joined."""
    scene, rng = Scene(), random.Random(8)
    for _ in range(1_000):
        scene.fleet.on_frame("stranger", malformed(rng), scene.now)
    assert [status.bad_messages for status in scene.fleet.status(scene.now)] == [0, 0]


def test_a_replica_that_only_sends_malice_loses_its_lease() -> None:
    """Malformed frames are no sign of life."""
    scene, rng = Scene(), random.Random(9)
    for _ in range(30):
        scene.wait(0.1)
        for _ in range(20):
            scene.fleet.on_frame("bad", malformed(rng), scene.now)
    assert scene.fleet.routable == ("good",)
    assert scene.fleet.choose(PROMPT, scene.now).candidates == ("good",)
