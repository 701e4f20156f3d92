"""`kvist status`: the replicas of a running cluster as one of its ingresses sees them, and in words what is wrong."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from cluster.environment import keys_from_environment
from router.errors import NoReplica

REQUEST_LIMIT_S: Final = 10.0
INCARNATION_CHARS: Final = 8
STATUS_PATH: Final = "/kvist/status"


def status(
    url: Annotated[str, typer.Option(help="The cluster's endpoint.")] = "http://127.0.0.1:8000",
    api_key: Annotated[str, typer.Option(help="A key, when the cluster asks for one; else KVIST_API_KEYS.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON.")] = False,
) -> None:
    """Show every replica: its stream, blocks, predicted and actual cached tokens. Exit 1 when one has a problem."""
    answer = _fetch(url, api_key or next(iter(keys_from_environment()), ""))
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        _print(answer)
    if not answer["warm"] or any(row["problems"] for row in answer["replicas"]):
        raise typer.Exit(1)


def _fetch(url: str, key: str) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    request = urllib.request.Request(url.rstrip("/") + STATUS_PATH)  # noqa: S310 - the scheme is checked above
    if key:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_LIMIT_S) as response:  # noqa: S310 - same
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as fault:
        words = "it asks for a key: pass --api-key" if fault.code == 401 else f"it answered {fault.code}"
        raise NoReplica(f"{url}: {words}") from None
    except (OSError, ValueError, http.client.HTTPException) as fault:
        raise NoReplica(f"{url}: no cluster answers there ({fault}); pass --url") from None
    if not isinstance(answer, dict) or not {"warm", "detail", "replicas"} <= answer.keys():
        raise NoReplica(f"{url}: what answers there is not Kvist; pass --url")
    return answer


def _print(answer: dict[str, Any]) -> None:
    table = Table(title=answer["detail"], title_justify="left")
    for name in (
        "replica",
        "incarnation",
        "model",
        "state",
        "blocks gpu/cpu/disk",
        "pool",
        "size",
        "behind",
        "silent s",
    ):
        table.add_column(name)
    for name in ("losses", "resyncs", "restarts", "skipped", "cached: predicted", "actual", "running"):
        table.add_column(name, justify="right")
    for row in answer["replicas"]:
        table.add_row(*_cells(row))
    console = Console(width=None if os.isatty(1) else 200)
    console.print(table)
    for row in answer["replicas"]:
        for problem in row["problems"]:
            console.print(f"{row['replica']}: {problem}", highlight=False)


def _cells(row: dict[str, Any]) -> list[str]:
    blocks = "/".join(str(row["blocks"].get(tier, 0)) for tier in ("gpu", "cpu", "disk"))
    counters = row["counters"]
    return [
        row["replica"],
        row["incarnation"][:INCARNATION_CHARS],
        row["model"],
        row["state"],
        blocks,
        str(row["pool_blocks"]),
        str(row["block_size"]),
        str(row["behind_frames"]),
        f"{row['silence_s']:.1f}",
        str(_total(counters, "_loss")),
        str(counters.get("resync_to_live_synced", 0)),
        str(_total(counters, "_restart")),
        str(row["skipped_events"]),
        str(row["predicted_cached_tokens"]),
        str(row["actual_cached_tokens"]),
        str(row["running"]),
    ]


def _total(counters: dict[str, int], ending: str) -> int:
    return sum(count for name, count in counters.items() if name.endswith(ending))
