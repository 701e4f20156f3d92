"""Dynamo's side of `load_tests.baselines.agreement`: its SelectionService, driven as a router drives it.

Runs under the peer's own interpreter and imports nothing of Kvist. One JSON command per line on stdin, one JSON answer
per line on stdout: `{"do": name, ...}` → `{"ok": ...}` or `{"error": text}`. Replicas are numbers from 0. A block is a
number; its tokens are that number, repeated. Events come to the service as they would from engines, over ZMQ on
loopback; whatever depends on them waits until they are seen.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from importlib import metadata
from typing import TYPE_CHECKING, Any

os.environ.setdefault("DYN_LOG", "error")

import msgpack
import zmq
from dynamo.llm import SelectionService  # type: ignore[import-not-found]

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Prompt = tuple[list[int], int]  # blocks, and the tokens after them

MODEL = "agreement"
VARIABLES = {
    "prefill_load_scale": "DYN_ROUTER_PREFILL_LOAD_SCALE",
    "overlap_score_credit": "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",
}
PACKAGES = ("ai-dynamo", "ai-dynamo-runtime")
FIRST_MARKER = 1 << 30  # above all blocks of prompts
TAIL_TOKEN = 1 << 29
SEEN_LIMIT_S = 20.0
JOIN_RETRY_S = 0.02


class Cluster:
    """One service with its workers. One method per command."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.service: Any = None
        self.sockets: list[Any] = []
        self.sent: list[int] = []
        self.unseen: set[int] = set()
        self.marker = FIRST_MARKER
        self.block_size = 0

    async def hello(self) -> dict[str, str]:
        return {package: metadata.version(package) for package in PACKAGES}

    async def begin(self, replicas: int, block_size: int, parameters: dict[str, float]) -> None:
        """A new service, with these parameters of the cost, and idle workers with empty caches."""
        await self.end()
        for name, value in parameters.items():
            os.environ[VARIABLES[name]] = str(value)  # the service's only way to take them
        self.service = SelectionService(indexer_threads=1)
        self.block_size = block_size
        self.sent, self.unseen = [-1] * replicas, set()
        for replica in range(replicas):
            socket = self.context.socket(zmq.PUB)
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind("tcp://127.0.0.1:*")
            self.sockets.append(socket)
            await self.service.upsert_worker(
                {
                    "worker_id": replica,
                    "model_name": MODEL,
                    "block_size": block_size,
                    "endpoint": f"http://127.0.0.1:{9_000 + replica}",
                    "kv_events_endpoints": {0: socket.getsockopt_string(zmq.LAST_ENDPOINT)},
                    "total_kv_blocks": 1_000_000,
                    "max_num_batched_tokens": 8_192,
                }
            )
        for replica in range(replicas):
            await self._until_seen(replica, retry_s=JOIN_RETRY_S)  # a subscription takes a while

    async def end(self) -> None:
        if self.service is not None:
            self.service.shutdown()
        for socket in self.sockets:
            socket.close()
        self.service, self.sockets = None, []

    async def change(self, action: list[Any]) -> int | None:
        """Let something happen. Returns the replica of a request that was reserved."""
        kind, *what = action
        if kind == "stored":
            replica, parent, blocks = what
            self._publish(replica, self._stored(parent, blocks))
        elif kind == "removed":
            replica, blocks = what
            self._publish(replica, ["BlockRemoved", blocks, "GPU"])
        elif kind == "reserve":
            request, prompt, allowed = what
            query = self._query(prompt) | {"selection_id": str(request), "allowed_worker_ids": allowed}
            await self._all_seen()
            return int((await self.service.select_and_reserve(query))["worker_id"])
        elif kind == "first_token":
            await self.service.prefill_complete(str(what[0]))
        elif kind == "finish":
            await self.service.free_reservation(str(what[0]))
        else:
            raise ValueError(f"no such action: {kind}")
        return None

    async def choose(self, prompt: Prompt, draws: int) -> list[int]:
        """The replicas selected for a prompt in so many independent selections, which book nothing."""
        await self._all_seen()
        query = self._query(prompt)
        return [(await self.service.select(query))["worker_id"] for _ in range(draws)]

    async def picture(self, prompt: Prompt) -> list[list[int]]:
        """Per replica: cached blocks; tokens to prefill but for those; blocks in use. The prompt is included."""
        await self._all_seen()
        query = self._query(prompt)
        overlaps = {one["worker_id"]: one["device_blocks"] for one in await self._overlaps(query)}
        loads = {one["worker_id"]: one for one in await self.service.potential_loads(query)}
        return [
            [overlaps[one], loads[one]["potential_prefill_tokens"], loads[one]["potential_decode_blocks"]]
            for one in range(len(self.sockets))
        ]

    def _query(self, prompt: Prompt) -> dict[str, Any]:
        blocks, tail_tokens = prompt
        return {"model_name": MODEL, "token_ids": self._tokens(blocks) + [TAIL_TOKEN] * tail_tokens}

    def _tokens(self, blocks: list[int]) -> list[int]:
        return [block for block in blocks for _ in range(self.block_size)]

    def _stored(self, parent: int | None, blocks: list[int]) -> list[Any]:
        """The event as vLLM sends it."""
        return ["BlockStored", blocks, parent, self._tokens(blocks), self.block_size, None, "GPU", None]

    def _publish(self, replica: int, event: list[Any]) -> None:
        self.sent[replica] += 1
        batch = msgpack.packb([time.time(), [event], 0])
        self.sockets[replica].send_multipart([b"", struct.pack(">Q", self.sent[replica]), batch])
        self.unseen.add(replica)

    async def _all_seen(self) -> None:
        for replica in sorted(self.unseen):
            await self._until_seen(replica, retry_s=SEEN_LIMIT_S)
        self.unseen.clear()

    async def _until_seen(self, replica: int, *, retry_s: float) -> None:
        """Store a block of its own after all that was published, and wait until it is there."""
        deadline = time.monotonic() + SEEN_LIMIT_S
        while time.monotonic() < deadline:
            self.marker += 1
            marker, again = [self.marker], time.monotonic() + retry_s
            self._publish(replica, self._stored(None, marker))
            while time.monotonic() < again:
                for one in await self._overlaps(self._query((marker, 0))):
                    if one["worker_id"] == replica and one["device_blocks"]:
                        return
                await asyncio.sleep(0)
        raise TimeoutError(f"events of replica {replica} were not seen for {SEEN_LIMIT_S} s")

    async def _overlaps(self, query: dict[str, Any]) -> Any:
        return (await self.service.overlap_scores(query))["workers"]


async def serve() -> None:
    # Whatever the peer prints goes to stderr; answers go where stdout was.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    cluster = Cluster()
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        method: Callable[..., Awaitable[object]] = getattr(cluster, command.pop("do"))
        try:
            answer: dict[str, object] = {"ok": await method(**command)}
        except Exception as error:  # noqa: BLE001 - told to the parent, which ends the run
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    asyncio.run(serve())
