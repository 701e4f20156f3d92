"""`kvist bench`: what Kvist's own parts cost on this machine, alone or beside a peer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(no_args_is_help=True, help=__doc__)


class PeerChoice(StrEnum):
    """Who does the same work in the same run."""

    DYNAMO = "dynamo"


@bench_app.callback()
def bench() -> None:
    """What Kvist's own parts cost on this machine, alone or beside a peer."""


@bench_app.command()
def router(
    json_file: Annotated[Path, typer.Option("--json", help="File for the rows.")],
    peer: Annotated[PeerChoice | None, typer.Option(help="Measure this one too, in turn.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the rows are medians over them.")] = 5,
    lab: Annotated[
        Path, typer.Option(envvar="KVIST_LAB", help="Folder of the peers' environments, one for each by its name.")
    ] = Path("~/.cache/kvist-lab"),
) -> None:
    """Hash, match, store, remove, choose and ingest: the parts of the router, on one CPU."""
    from load_tests.bench.report import as_text, write  # noqa: PLC0415 - keeps `--help` fast
    from load_tests.bench.run import bench_router  # noqa: PLC0415 - same
    from load_tests.bench.workload import Sizes  # noqa: PLC0415 - same

    name = peer.value if peer else None
    data = bench_router(rounds=rounds, sizes=Sizes(), peer=name, lab=lab.expanduser())
    write(data, json_file)
    typer.echo(as_text(data))
