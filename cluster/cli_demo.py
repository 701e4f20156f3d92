"""`kvist demo`: experiments that measure on this machine what Kvist is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

demo_app = typer.Typer(invoke_without_command=True, pretty_exceptions_enable=False)

Json = Annotated[bool, typer.Option("--json", help="Print the JSON instead of the table.")]


@demo_app.callback()
def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for demo.json and demo.png.")] = Path("out"),
    as_json: Json = False,
) -> None:
    """Measure what an unstable preamble and blind routing cost on this machine, and that Kvist removes it."""
    if context.invoked_subcommand is not None:
        return
    from cluster.demo import run_demo  # noqa: PLC0415 - keeps `--help` fast

    data, text = run_demo(out)
    typer.echo(json.dumps(data) if as_json else text)


@demo_app.command()
def share(
    out: Annotated[Path, typer.Option(help="Folder for share.json.")] = Path("out"),
    as_json: Json = False,
) -> None:
    """Measure what a prompt costs on a replica that never saw it, when another one of the node has computed it."""
    from cluster.demo import run_share  # noqa: PLC0415 - keeps `--help` fast

    data, text = run_share(out)
    typer.echo(json.dumps(data) if as_json else text)
