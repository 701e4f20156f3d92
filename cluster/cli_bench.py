"""`kvist bench`: what Kvist's own parts cost on this machine, alone or beside a peer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from router.errors import InvalidRequest

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
Options = Annotated[list[str] | None, typer.Option("--set", help="key=value of the cluster's config; may be repeated.")]
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
    options: Options = None,
) -> None:
    """The way from a client to a worker and back: agents' conversations and streams through a whole cluster."""
    from cluster.bench_cluster import measure_ingress  # noqa: PLC0415 - keeps `--help` fast
    from load_tests.bench.ingress import Plan  # noqa: PLC0415 - same
    from load_tests.bench.report import as_text, write  # noqa: PLC0415 - same

    plan = Plan.of(rounds=rounds, turns=turns, groups=[one.value for one in group or ()])
    data = measure_ingress(plan, lab=lab.expanduser() if peer else None, options=_config_keys(options))
    write(data, json_file)
    typer.echo(as_text(data))


@bench_app.command()
def stages(
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows.")] = None,
    rounds: Rounds = 5,
    turns: Turns = 25,
    options: Options = None,
) -> None:
    """Where the time of a warm turn goes, each step beside its budget."""
    from cluster.bench_cluster import measure_stages  # noqa: PLC0415 - keeps `--help` fast
    from load_tests.bench.report import as_text, write  # noqa: PLC0415 - same

    data = measure_stages(rounds=rounds, turns=turns, options=_config_keys(options))
    if json_file is not None:
        write(data, json_file)
    typer.echo(as_text(data))


def _config_keys(options: list[str] | None) -> dict[str, Any]:
    """Values are read as YAML. Raises `InvalidRequest` for what is no `key=value`."""
    found = {}
    for option in options or ():
        key, equals, value = option.partition("=")
        if not equals:
            raise InvalidRequest(f"--set {option}: say key=value, as in --set data_plane=handle")
        found[key] = yaml.safe_load(value)
    return found
