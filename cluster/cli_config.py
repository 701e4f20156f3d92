"""`kvist config`: is a cluster file right, and what may stand in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cluster.config import ClusterConfig, load_config

config_app = typer.Typer(no_args_is_help=True, help=__doc__)


@config_app.command()
def check(file: Annotated[Path, typer.Argument(help="A cluster file (YAML or JSON).")]) -> None:
    """Say what a cluster file asks for, or what is wrong with it and where (exit 2)."""
    config = load_config(file)
    for model in config.models:
        scaled = model.autoscaling
        replicas = f"{scaled.min_replicas} to {scaled.max_replicas}" if scaled else str(model.least_replicas)
        gpus = model.gpus if model.gpus_per_replica is None else model.gpus_per_replica
        names = ", ".join(model.served_names())
        typer.echo(
            f"{model.name}: {replicas} replicas of {model.source} ({model.engine}), {gpus} GPUs each, as {names}"
        )
    for pattern, name in config.resolved_aliases().items():
        typer.echo(f"{pattern} leads to {name}")
    typer.echo(f"{file}: right")


@config_app.command()
def schema() -> None:
    """Print the JSON Schema of cluster files, for editors."""
    typer.echo(json.dumps(ClusterConfig.model_json_schema(), indent=2))
