"""`kvist replay`: what routing policies make of a trace, on a simulated cluster."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from router.errors import InvalidRequest


class StepChoice(StrEnum):
    """How an engine shares its step between prompts."""

    FCFS = "fcfs"
    SHARED = "shared"


class HalfChoice(StrEnum):
    """Which half of a trace."""

    ALL = "all"
    TUNE = "tune"
    REPORT = "report"


def replay(
    traces: Annotated[
        list[Path] | None, typer.Argument(help="Trace files (.jsonl.gz): sessions, or timed requests.")
    ] = None,
    policy: Annotated[str, typer.Option(help="Policies, by comma, or `all`.")] = "kvist",
    replicas: Annotated[int, typer.Option(min=1, help="Replicas.")] = 8,
    pool_blocks: Annotated[str, typer.Option(help="Blocks per pool, or `2x`: all pools twice the working set.")] = "2x",
    block_size: Annotated[int | None, typer.Option(help="Must be the trace's; it is taken from there.")] = None,
    calibration: Annotated[str, typer.Option(help="Pace of the engines, by name.")] = "h100-32b",
    step: Annotated[StepChoice, typer.Option(help="fcfs: a prompt takes all of a step. shared: half of it.")] = (
        StepChoice.SHARED
    ),
    rate_scale: Annotated[float, typer.Option(min=0.001, help="Divides think times and times between arrivals.")] = 1.0,
    sessions: Annotated[
        int | None, typer.Option(min=1, help="Agents at work at once. Default: 12 per replica.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests per trace; sessions come again as new ones.")] = 5000,
    half: Annotated[HalfChoice, typer.Option(help="Every other session: one half to tune on, one to report.")] = (
        HalfChoice.ALL
    ),
    seed: Annotated[int, typer.Option(help="Order of sessions and their beginnings; policies' randomness.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the rows.")] = None,
    validate: Annotated[bool, typer.Option("--validate", help="Compare the simulator with real vLLM-CPU.")] = False,
) -> None:
    """Replay traces on a simulated cluster under one or more policies; prints a table and writes its rows as JSON."""
    if validate:
        _validate()
    if not traces and not validate:
        raise InvalidRequest("name a trace file, or --validate")
    from load_tests.policies import POLICY_NAMES  # noqa: PLC0415 - keeps `--help` fast
    from load_tests.sim import report  # noqa: PLC0415 - same
    from load_tests.sim import traces as known  # noqa: PLC0415 - same
    from load_tests.sim.calibration import calibration_named  # noqa: PLC0415 - same
    from load_tests.sim.closed_loop import Layout  # noqa: PLC0415 - same
    from load_tests.sim.replay import SHARED_PARTS, PoolSize, Setting  # noqa: PLC0415 - same
    from load_tests.sim.replay import replay as run  # noqa: PLC0415 - same

    setting = Setting(
        replicas=replicas,
        pool=PoolSize.parse(pool_blocks),
        pace=calibration_named(calibration),
        shares_steps=SHARED_PARTS if step is StepChoice.SHARED else 0,
    )
    policies = list(POLICY_NAMES) if policy == "all" else policy.split(",")
    layout = Layout(sessions or 12 * replicas, requests, rate_scale, seed)
    rows = []
    for trace in traces or ():
        workload = known.workload_of(trace, layout, known.Half(half.value))
        if block_size not in {None, workload.block_size}:
            raise InvalidRequest(f"{trace.name} is hashed in blocks of {workload.block_size}, not {block_size}")
        cluster = setting.cluster(workload)
        title = (
            f"{workload.name}: {replicas} × {cluster.replicas[0].parameters.pool_blocks} blocks, {calibration}, {step}"
        )
        made = list(run(workload, setting, policies, seed=seed))
        typer.echo(report.as_text(made, title=title))
        rows += made
    if json_file is not None:
        report.write(rows, json_file)


def _validate() -> None:
    """Measure a real engine's pace, run one small workload on it and in the simulator, and show how they differ."""
    from cluster.cache_dir import cache_dir  # noqa: PLC0415 - keeps `--help` fast
    from load_tests.policies import policy_named  # noqa: PLC0415 - same
    from load_tests.sim.validate import validate as run  # noqa: PLC0415 - same

    found = run(cache_dir(), policy_named("round-robin", seed=0))
    typer.echo(found.as_text())
    typer.echo(found.pace_as_json())
