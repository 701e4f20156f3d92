"""`kvist bench`: what Kvist's own parts cost on this machine, alone or beside a peer."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(no_args_is_help=True, help=__doc__)


class PeerChoice(StrEnum):
    """Who does the same work in the same run."""

    DYNAMO = "dynamo"


class GroupChoice(StrEnum):
    """A group of measures of the ingress."""

    WARM = "warm"
    LONG = "long"
    NEW = "new"
    LIVE = "live"
    STREAMS = "streams"
    BURST = "burst"


JsonFile = Annotated[Path, typer.Option("--json", help="File for the rows.")]
Peer = Annotated[PeerChoice | None, typer.Option(help="Measure this one too, in turn.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds; the rows are medians over them.")]
Turns = Annotated[int, typer.Option(min=1, help="Measured turns of a conversation in a round, at most.")]
Lab = Annotated[
    Path, typer.Option(envvar="KVIST_LAB", help="Folder of the peers' environments, one for each by its name.")
]
LAB = Path("~/.cache/kvist-lab")


@bench_app.callback()
def bench() -> None:
    """What Kvist's own parts cost on this machine, alone or beside a peer."""


@bench_app.command()
def router(json_file: JsonFile, peer: Peer = None, rounds: Rounds = 5, lab: Lab = LAB) -> None:
    """Hash, match, store, remove, choose and ingest: the parts of the router, on one CPU."""
    from load_tests.bench.report import as_text, write  # noqa: PLC0415 - keeps `--help` fast
    from load_tests.bench.run import bench_router  # noqa: PLC0415 - same
    from load_tests.bench.workload import Sizes  # noqa: PLC0415 - same

    name = peer.value if peer else None
    data = bench_router(rounds=rounds, sizes=Sizes(), peer=name, lab=lab.expanduser())
    write(data, json_file)
    typer.echo(as_text(data))


@bench_app.command()
def ingress(
    json_file: JsonFile,
    peer: Peer = None,
    rounds: Rounds = 5,
    turns: Turns = 12,
    group: Annotated[list[GroupChoice] | None, typer.Option(help="Only these groups; may be repeated.")] = None,
    lab: Lab = LAB,
) -> None:
    """The way from a client to a worker and back: agents' conversations and streams through a whole cluster."""
    from cluster.bench_cluster import bench_model, kvist  # noqa: PLC0415 - keeps `--help` fast
    from load_tests.bench.ingress import Plan, bench_ingress  # noqa: PLC0415 - same
    from load_tests.bench.ingress_dynamo import dynamo, dynamo_versions  # noqa: PLC0415 - same
    from load_tests.bench.report import as_text, write  # noqa: PLC0415 - same

    versions = dynamo_versions(lab.expanduser()) if peer else {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvist-bench-")))
        model = bench_model(folder)
        sides = [stack.enter_context(kvist(model, folder))]
        if peer:
            sides.append(stack.enter_context(dynamo(model, folder, lab=lab.expanduser())))
        plan = Plan.of(rounds=rounds, turns=turns, groups=[one.value for one in group or ()])
        data = bench_ingress(sides, plan, versions)
    write(data, json_file)
    typer.echo(as_text(data))


@bench_app.command()
def stages(
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows.")] = None,
    rounds: Rounds = 5,
    turns: Turns = 25,
) -> None:
    """Where the time of a warm turn goes, each step beside its budget."""
    from cluster.bench_cluster import bench_model, kvist  # noqa: PLC0415 - keeps `--help` fast
    from load_tests.bench.report import as_text, write  # noqa: PLC0415 - same
    from load_tests.bench.stages import bench_stages  # noqa: PLC0415 - same

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvist-bench-")))
        side = stack.enter_context(kvist(bench_model(folder), folder))
        data = bench_stages(side, rounds=rounds, turns=turns)
    if json_file is not None:
        write(data, json_file)
    typer.echo(as_text(data))
