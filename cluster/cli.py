"""The command line: `kvist`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.cli_bench import bench_app
from cluster.cli_config import config_app
from cluster.cli_demo import demo_app
from cluster.cli_deploy import deploy_app
from cluster.cli_doctor import doctor
from cluster.cli_events import events
from cluster.cli_explain import explain
from cluster.cli_keys import keys_app
from cluster.cli_replay import replay
from cluster.cli_status import status
from cluster.cli_swarm import swarm
from cluster.config import ClusterConfig, load_config, parse_config
from cluster.environment import keys_from_environment, strip_from_environment
from cluster.faults import report_fault
from router.errors import KvistError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


class EngineChoice(StrEnum):
    """What computes: real vLLM, or the simulator."""

    VLLM = "vllm"
    SIM = "sim"


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="Cluster file (YAML); other options override it.")] = None,
    model: Annotated[str | None, typer.Option(help="smollm2, tiny, a folder, or a hub id.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Replicas per model.")] = None,
    engine: Annotated[EngineChoice | None, typer.Option(help="vllm or sim.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the endpoint.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; other than loopback needs a key.")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Accepted key; may be given often.")] = None,
    strip_anthropic_preamble: Annotated[
        bool | None,
        typer.Option(
            "--strip-anthropic-preamble/--no-strip-anthropic-preamble",
            help="Remove attribution lines from system text. Default on; env KVIST_STRIP_ANTHROPIC_PREAMBLE.",
        ),
    ] = None,
    ray_address: Annotated[str | None, typer.Option(envvar="RAY_ADDRESS", help="Join this Ray cluster.")] = None,
) -> None:
    """Serve models: starts a cluster on this machine, or joins one with --ray-address."""
    from cluster.launch import serve_locally, serve_on_cluster  # noqa: PLC0415 - keeps `--help` fast
    from cluster.preflight import check  # noqa: PLC0415 - same

    overrides = ServeOverrides(
        model=model,
        replicas=replicas,
        engine=engine.value if engine else None,
        port=port,
        host=host,
        api_keys=tuple(api_key or keys_from_environment()),
        strip=strip_anthropic_preamble if strip_anthropic_preamble is not None else strip_from_environment(),
    )
    chosen = overrides.apply(load_config(config) if config else None)
    if ray_address:
        serve_on_cluster(chosen, ray_address)
        return
    check(chosen)
    raise typer.Exit(serve_locally(chosen))


@app.command()
def down(
    ray_address: Annotated[str, typer.Option(envvar="RAY_ADDRESS", help="The Ray cluster to take it from.")] = "auto",
) -> None:
    """Take the application off a Ray cluster that `kvist serve` joined."""
    from cluster.launch import take_down  # noqa: PLC0415 - keeps `--help` fast

    take_down(ray_address)
    typer.echo("kvist: the application is gone; the Ray cluster keeps running")


app.command()(doctor)
app.command()(events)
app.command()(explain)
app.command()(replay)
app.command()(status)
app.command()(swarm)
app.add_typer(bench_app, name="bench")
app.add_typer(config_app, name="config")
app.add_typer(demo_app, name="demo")
app.add_typer(deploy_app, name="deploy")
app.add_typer(keys_app, name="keys")


class ServeOverrides:
    """Command-line options on top of a config file, or of the default cluster: one model, two replicas."""

    def __init__(self, **given: Any) -> None:
        self._given = given

    def apply(self, base: ClusterConfig | None) -> ClusterConfig:
        """The config to serve. Raises `InvalidRequest` when an option does not fit."""
        data = base.model_dump(mode="json") if base else {"models": [{"name": "smollm2"}]}
        given = self._given
        for name in ("port", "host"):
            if given[name] is not None:
                data[name] = given[name]
        if given["api_keys"]:
            data["api_keys"] = given["api_keys"]
        for model in data["models"]:
            self._apply_to_model(model)
        return parse_config(data, where="kvist serve")

    def _apply_to_model(self, model: dict[str, Any]) -> None:
        given = self._given
        if given["model"] is not None:
            model["source"] = given["model"]
            is_path = given["model"].startswith(("/", ".", "~"))
            model["name"] = Path(given["model"]).expanduser().resolve().name if is_path else given["model"]
        for name in ("replicas", "engine"):
            if given[name] is not None:
                model[name] = given[name]
        if given["replicas"] is not None:
            model.pop("autoscaling", None)
        if given["strip"] is not None:
            model.setdefault("rules", {})["strip_anthropic_preamble"] = given["strip"]


def main() -> None:
    """Entry point: a fault of the caller's is one sentence on stderr and exit code 2, a cluster's is 1."""
    try:
        app()
    except KvistError as fault:
        raise SystemExit(report_fault(fault)) from None


if __name__ == "__main__":
    main()
