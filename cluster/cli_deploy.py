"""`kvist deploy`: files for `ray up` and for KubeRay, all from the one cluster file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cluster.config import load_config

deploy_app = typer.Typer(no_args_is_help=True, help=__doc__)
DEPLOY_FOLDER = Path("deploy")


class TargetChoice(StrEnum):
    """Where the cluster will run."""

    RAY_UP = "ray-up"
    KUBERAY = "kuberay"


@deploy_app.callback()
def deploy() -> None:
    """Files for `ray up` and for KubeRay, all from the one cluster file."""


@deploy_app.command()
def render(
    target: Annotated[TargetChoice, typer.Argument(help="ray-up or kuberay.")],
    config: Annotated[Path, typer.Option(help="The cluster file.")] = DEPLOY_FOLDER / "cluster.yaml",
    out: Annotated[Path | None, typer.Option(help="Folder for the files; else deploy/<target>.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 when a file differs.")] = False,
) -> None:
    """Write the files of a target, or say which of them are not as the cluster file has it."""
    from cluster.rendering.files import differing, write  # noqa: PLC0415 - keeps `--help` fast
    from cluster.rendering.files import render as rendered  # noqa: PLC0415 - same

    folder = out or DEPLOY_FOLDER / target.value
    files = rendered(target.value, load_config(config))
    if not check:
        write(files, folder)
        typer.echo(f"kvist: {len(files)} files in {folder}")
        return
    wrong = differing(files, folder)
    for path in wrong:
        typer.echo(f"kvist: {folder / path} is not what {config} says", err=True)
    if wrong:
        typer.echo(f"kvist: run `kvist deploy render {target.value}` again", err=True)
        raise typer.Exit(1)
