"""`python -m tests.fuzz TARGET [libFuzzer arguments]`: looks for inputs that break a target. Without one, names them.

Finds go to `out/fuzz/TARGET`; a crash to `out/fuzz/crash-…`, which pytest then replays from the corpus until it is
mended. Stops after DEFAULT_RUNS unless told otherwise, and fails when memory grows by more than MAX_GROWTH_MB.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Final

import atheris

from tests.fuzz.targets import NAMES, target

CORPUS: Final = Path(__file__).parent / "corpus"
OUT: Final = Path("out") / "fuzz"
DEFAULT_RUNS: Final = 100_000
MAX_GROWTH_MB: Final = 100
MAX_INPUT_BYTES: Final = 2_048


def main(arguments: list[str]) -> None:
    """Fuzz one target. Ends the process: with 0, or with libFuzzer's own code after a find."""
    if not arguments:
        print(*NAMES, sep="\n")
        return
    if arguments[0] not in NAMES:
        raise SystemExit(f"{arguments[0]} is none of {', '.join(NAMES)}")
    name, *own = arguments
    with atheris.instrument_imports(include=["router", "workers", "cluster"]):
        run = target(name).run
    found = OUT / name
    found.mkdir(parents=True, exist_ok=True)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    defaults = [
        f"-runs={DEFAULT_RUNS}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-rss_limit_mb={peak_mb + MAX_GROWTH_MB}",
        f"-artifact_prefix={OUT}/",
        "-timeout=10",
        "-print_final_stats=1",
    ]
    atheris.Setup([f"fuzz-{name}", *defaults, *own, str(found), str(CORPUS / name)], run)
    atheris.Fuzz()


main(sys.argv[1:])
