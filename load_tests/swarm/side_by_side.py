"""`python -m load_tests.swarm.side_by_side`: the same swarm against several endpoints, in one table.

    python -m load_tests.swarm.side_by_side --side kvist=http://127.0.0.1:8000,messages \\
        --side other=http://127.0.0.1:8100,chat,its-model --preamble changing --preamble none --agents 40 --duration 30

Further settings are given as --set name=value, by the names that `settings.py` has.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import uvloop
from rich.console import Console

from load_tests.client import Api
from load_tests.report.html import render_comparison
from load_tests.report.limits import MAX_RUNS
from load_tests.swarm.compare import Side, as_data, compare, phases_of
from load_tests.swarm.results import write_results
from load_tests.swarm.settings import Preamble, Settings, make_settings
from load_tests.swarm.tables import side_by_side
from router.errors import InvalidRequest, KvistError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load_tests.swarm.run import Result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 2 when what was asked for is not possible."""
    try:
        return _run(_parser().parse_args(arguments))
    except KvistError as fault:
        Console(stderr=True).print(f"side_by_side: {fault}", highlight=False, soft_wrap=True)
        return 2


def side_of(text: str) -> Side:
    """LABEL=URL,API[,MODEL]. Raises `InvalidRequest`."""
    label, _, rest = text.partition("=")
    url, api, model, *more = (*rest.split(","), "", "")
    if not label or "/" in label or not url or api not in get_args(Api) or any(more):
        raise InvalidRequest(f"--side {text}: say LABEL=URL,messages or LABEL=URL,chat,MODEL")
    return Side(label, url, cast(Api, api), model)


def settings_of(options: argparse.Namespace) -> Settings:
    """All but what each side has of its own. Raises `InvalidRequest`."""
    given: dict[str, Any] = {"salt": f"{time.time_ns():x}", "agents": options.agents, "duration_s": options.duration}
    for pair in options.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidRequest(f"--set {pair}: say name=value, as in --set think_s=1")
        given[name] = _read(value)
    return make_settings(**given)


def write(results: Mapping[str, Result], folder: Path) -> Path:
    """side_by_side.json and side_by_side.html, and every column's own files."""
    for result in results.values():
        write_results(result, folder)
    path = folder / "side_by_side.json"
    path.write_text(json.dumps(as_data(results), indent=1) + "\n", encoding="utf-8")
    page = render_comparison(list(results.values())[:MAX_RUNS])  # the others have their own pages
    path.with_suffix(".html").write_text(page, encoding="utf-8")
    return path


def _run(options: argparse.Namespace) -> int:
    sides = [side_of(text) for text in options.side]
    settings = settings_of(options)
    phases = phases_of(sides, options.preamble or ["changing"], rounds=options.rounds, seed=settings.seed)
    results = uvloop.run(compare(phases, settings, console=Console(stderr=True)))
    console = Console()
    console.print(side_by_side([result.summary for result in results.values()]))
    console.print(f"written: {write(results, options.out)}", highlight=False, soft_wrap=True)
    return 0


def _read(value: str) -> Any:
    """Numbers as numbers, all else as it is."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="side_by_side", description="The same swarm against several endpoints.")
    parser.add_argument("--side", action="append", required=True, help="LABEL=URL,API[,MODEL]; may be repeated")
    parser.add_argument("--preamble", action="append", choices=get_args(Preamble), help="may be repeated")
    parser.add_argument("--rounds", type=int, default=2, help="phases of each side and preamble")
    parser.add_argument("--agents", type=int, help="closed loop of so many agents")
    parser.add_argument("--duration", type=float, help="measured seconds of a phase; 60")
    parser.add_argument("--set", action="append", default=[], help="name=value of a setting; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
