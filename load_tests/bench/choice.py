"""Choosing among 64 replicas and reserving, in one step.

choose           the prompt's hashes are given, as a warm turn has them. The peer offers nothing of the kind.
hash_and_choose  from tokens: what the peer's `select_and_reserve` does. Releasing is off the clock on both sides.

Every second replica holds the whole prompt, the others its first 400 blocks; all have private blocks.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

from load_tests.bench import workload
from load_tests.bench.index import GPU, LOAD, MODEL, name_of
from load_tests.bench.sender import EngineSender
from load_tests.bench.timing import Group, Values
from router.errors import KvistBug
from router.fleet import Fleet
from router.hashing import block_hashes, seed_of
from router.replicas import PromptBlocks, ReplicaInfo
from router.wire import (
    Frame,
    SnapshotChunk,
    Stored,
    decode_snapshot_request,
    encode_chunk,
    encode_frame,
)

if TYPE_CHECKING:
    from load_tests.bench.peer import Peer
    from load_tests.bench.workload import Sizes

NOW: Final = 1.0
PEER_LIMIT_S: Final = 60.0


class Choosing(Group):
    """A fleet whose streams are live, and the same replicas at the peer."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._tokens, self._runs = workload.choice_token_runs(sizes)
        self._packed = self._tokens.tobytes()
        self._fleet = Fleet(model=MODEL)
        for replica in range(sizes.replicas):
            _join(self._fleet, replica, self._resident(replica), sizes)
        self._subscribed: EngineSender | None = None

    def kvist(self) -> Values:
        size, seed, tokens = self._sizes.block_size, seed_of(MODEL), len(self._tokens)
        hashed, chosen = [], []
        for _ in range(self._sizes.calls + 1):
            start = time.perf_counter()
            hashes = block_hashes(self._packed, block_size=size, seed=seed)
            between = time.perf_counter()
            decision = self._fleet.choose(PromptBlocks(tokens, {size: hashes}), NOW)
            end = time.perf_counter()
            self._fleet.finish(decision.reservation, NOW)
            hashed.append(end - start)
            chosen.append(end - between)
        if decision.predicted_cached_tokens != (tokens - 1) // size * size:
            raise KvistBug("the fleet does not find what its replicas hold")
        rows = (f"choose_{self._sizes.replicas}_replicas_us", chosen), (self._row_from_tokens(), hashed)
        return {row: statistics.median(seconds[1:]) * 1e6 for row, seconds in rows}

    def peer(self, peer: Peer) -> Values:
        sizes = self._sizes
        frames = [(run.run.replica, workload.engine_frame(run, sizes)) for run in self._runs]
        with EngineSender(frames, replicas=sizes.replicas) as sender:
            pool_blocks = sizes.prompt_blocks + sizes.choice_private_blocks
            peer.ask("subscribe", endpoints=sender.endpoints, block_size=sizes.block_size, pool_blocks=pool_blocks)
            sender.go()
            file = peer.file("choice-last", workload.last_prompts(self._runs))
            peer.ask("wait", file=file, block_size=sizes.block_size, limit_s=PEER_LIMIT_S)
            value = peer.ask("choose", file=peer.file("choice", self._tokens.tolist()), calls=sizes.calls)
            peer.ask("unsubscribe")
        return {self._row_from_tokens(): value}

    def _row_from_tokens(self) -> str:
        return f"hash_and_choose_{self._sizes.replicas}_replicas_us"

    def _resident(self, replica: int) -> tuple[int, ...]:
        size, seed = self._sizes.block_size, seed_of(MODEL)
        held = self._sizes.prompt_blocks if replica % 2 == 0 else self._sizes.shared_blocks
        shared = block_hashes(self._packed, block_size=size, seed=seed)[:held]
        mine = [run.hashes for run, _ in self._runs if run.replica == replica]
        private = [one for hashes in mine for one in hashes][-self._sizes.choice_private_blocks :]
        return (*shared, *private)


def _join(fleet: Fleet, replica: int, resident: tuple[int, ...], sizes: Sizes) -> None:
    name = name_of(replica)
    info = ReplicaInfo(
        replica=name,
        incarnation="bench",
        model=MODEL,
        block_size=sizes.block_size,
        pool_blocks=len(resident),
        max_model_len=10**6,
        events="tcp://127.0.0.1:1",
        snapshots="tcp://127.0.0.1:1",
    )
    (action,) = fleet.join(info, NOW)
    blocks = (Stored(GPU, resident),)
    chunk = SnapshotChunk(
        replica=name, incarnation="bench", seq=0, index=0, count=1, block_size=sizes.block_size, blocks=blocks
    )
    fleet.on_chunk(name, encode_chunk(chunk, nonce=decode_snapshot_request(action.request)), NOW)
    fleet.on_frame(name, encode_frame(Frame(name, "bench", 0, 0.0, (), LOAD, sizes.block_size)), NOW)
