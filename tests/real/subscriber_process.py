"""A router in a process of its own: `python -m tests.real.subscriber_process REPLICA_INFO`.

Follows the replica and answers each `stats` command on standard input with what it believes.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from router.replicas import ReplicaInfo
from tests.real.leading import Router
from tests.real.worker_process import Answer, Command, say


async def follow(info: ReplicaInfo) -> None:
    """Until the input ends."""
    router = Router()
    router.follow(info)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        number = msgspec.json.decode(line, type=Command).number
        shown = {medium: [*hashes] for medium, hashes in router.shown().items()}
        (status,) = router.fleet.status(0.0)
        say(Answer(number=number, shown=shown, done=not status.fenced, counters=status.counters))
    await router.close()


if __name__ == "__main__":
    asyncio.run(follow(msgspec.json.decode(sys.argv[1], type=ReplicaInfo)))
