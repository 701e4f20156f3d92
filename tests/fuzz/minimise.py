"""`python -m tests.fuzz.minimise`: rebuilds the corpus from our own seeds and what fuzzing has found besides.

Greedy: of the old corpus and `out/fuzz`, that input stays which runs most steps from one line to another that none
before it has run, then the next, up to MAX_FOUND for each target.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.fuzz.targets import NAMES, Target, target

if TYPE_CHECKING:
    from types import FrameType

Step = tuple[str, int, int]
CORPUS: Final = Path(__file__).parent / "corpus"
OUT: Final = Path("out") / "fuzz"
ROOT: Final = Path(__file__).parents[2]
WATCHED: Final = tuple(f"{ROOT / package}/" for package in ("router", "workers", "cluster"))
MAX_FOUND_BYTES: Final = 1_024
MAX_FOUND: Final = 14


def steps_of(chosen: Target, data: bytes) -> set[Step]:
    """From which line to which the code under test goes."""
    seen: set[Step] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(WATCHED):
            return None
        last = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            seen.add((path, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line

    sys.settrace(trace)
    try:
        chosen.run(data)
    finally:
        sys.settrace(None)
    return seen


def minimised(name: str) -> list[bytes]:
    """The new corpus of one target."""
    chosen = target(name)
    seeds = list(dict.fromkeys(chosen.seeds()))
    seen = set[Step]().union(*(steps_of(chosen, seed) for seed in seeds))
    folders = [folder for folder in (CORPUS / name, OUT / name) if folder.is_dir()]
    found = {path.read_bytes() for folder in folders for path in folder.iterdir()}
    new = {data: steps_of(chosen, data) - seen for data in found if len(data) <= MAX_FOUND_BYTES}
    kept: list[bytes] = []
    while new and len(kept) < MAX_FOUND:
        best = max(new, key=lambda data: (len(new[data]), -len(data), data))
        seen = new.pop(best)
        if not seen:
            break
        kept.append(best)
        new = {data: steps - seen for data, steps in new.items()}
    return seeds + kept


def main() -> None:
    for name in NAMES:
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        kept = {hashlib.sha256(data).hexdigest()[:16]: data for data in minimised(name)}
        for path in folder.iterdir():
            if path.name not in kept:
                path.unlink()
        for digest, data in kept.items():
            (folder / digest).write_bytes(data)
        print(f"{name}: {len(kept)} inputs, {sum(map(len, kept.values()))} bytes")


if __name__ == "__main__":
    main()
