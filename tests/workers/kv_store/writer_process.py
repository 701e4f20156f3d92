"""A process that keeps writing and reading blocks: `python -m tests.workers.kv_store.writer_process FOLDER PAGES SEED
ROUNDS`. It prints a line when it has begun, and one with its number of wrong reads at the end."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.workers.kv_store.support import block, opened, payload_of, read
from workers.kv_store.frames import BadFrame

NAMES = 200


def main(folder: str, pages: str, seed: str, rounds: str) -> None:
    store = opened(Path(folder), pages=int(pages))
    rng = random.Random(int(seed))
    print("begun", flush=True)
    wrong = 0
    for stamp in range(int(rounds)):
        store.put([block(rng.randrange(NAMES), stamp) for _ in range(rng.randrange(1, 6))])
        name = rng.randrange(NAMES)
        try:
            wrong += read(store, name) != payload_of(name)
        except BadFrame:
            continue
    store.close()
    print(wrong, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
