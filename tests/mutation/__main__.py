"""`python -m tests.mutation [--only NAME]`: 0 when every mutant is killed by its named tests, else 1."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.mutation.mutants import MUTANTS
from tests.mutation.trial import Trial


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--only", choices=[mutant.name for mutant in MUTANTS], help="one mutant")
    only = parser.parse_args().only
    chosen = [mutant for mutant in MUTANTS if only in {None, mutant.name}]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        trial.check_sound()
        for mutant in chosen:
            outcome = trial.tried(mutant)
            survived += not outcome.is_killed
            print(f"{'killed' if outcome.is_killed else 'SURVIVED':8}  {mutant.name}: {outcome.by}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants killed")
    raise SystemExit(bool(survived))


main()
