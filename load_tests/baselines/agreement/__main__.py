"""`python -m load_tests.baselines.agreement`: print how often both sides choose the same, by default and tuned."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from load_tests.baselines.agreement.compare import SCRIPT, agreement
from load_tests.baselines.agreement.recording import recorded
from load_tests.baselines.dynamo import DEFAULTS, TUNED
from load_tests.bench.peer import Peer
from load_tests.peers.environment import lab_folder

SETTINGS: Final = {"dynamo": DEFAULTS, "dynamo-tuned": TUNED}


def main() -> None:
    """Compare, or record small states for the tests."""
    chosen = _options()
    with Peer("dynamo", lab=chosen.lab, script=SCRIPT) as peer:
        print(", ".join(f"{name} {version}" for name, version in peer.ask("hello").items()))
        if chosen.record:
            lines = [line for one in SETTINGS.values() for line in recorded(peer, one, seed=chosen.seed)]
            chosen.record.write_text("\n".join(lines) + "\n", encoding="utf-8")
            return
        for name, parameters in SETTINGS.items():
            found = agreement(peer, parameters, states=chosen.states, seed=chosen.seed)
            print(f"{name:14}", found.told(), flush=True)


def _options() -> argparse.Namespace:
    options = argparse.ArgumentParser(description="How often `dynamo` chooses as Dynamo's SelectionService does.")
    options.add_argument("--states", type=int, default=10_000, help="states for each of the two settings")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--lab", type=Path, default=lab_folder())
    options.add_argument("--record", type=Path, metavar="FILE", help="instead, write small states and choices there")
    return options.parse_args()


if __name__ == "__main__":
    main()
