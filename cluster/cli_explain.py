"""`kvist explain`: what Kvist makes of captured requests, and where a running cluster would send them."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from router.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.captures import Captured
    from cluster.models.served import ServedModel

TINY_BLOCK_TOKENS: Final = 32
GPU_BLOCK_TOKENS: Final = 16
SHOWN_CHARS: Final = 120


class ApiChoice(StrEnum):
    """The protocol of a captured request."""

    MESSAGES = "messages"
    CHAT = "chat"
    RESPONSES = "responses"
    COMPLETIONS = "completions"


class TemplateChoice(StrEnum):
    """The two head layouts of the tiny model."""

    SYSTEM_FIRST = "system-first"
    TOOLS_FIRST = "tools-first"


Files = Annotated[list[Path], typer.Argument(help="A body (JSON), bodies (JSONL), or a recorded session.")]
Model = Annotated[str, typer.Option(help="tiny, smollm2, a folder, or a hub id: its tokenizer and template.")]


def explain(
    files: Files,
    model: Model = "tiny",
    template: Annotated[TemplateChoice, typer.Option(help="Of the tiny model.")] = TemplateChoice.SYSTEM_FIRST,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens per block; 32 for tiny, else 16.")] = None,
    api: Annotated[ApiChoice | None, typer.Option(help="The requests' protocol; guessed by default.")] = None,
    url: Annotated[str, typer.Option(help="A running cluster: show how its replicas stand for each request.")] = "",
    api_key: Annotated[str, typer.Option(help="A key, when the cluster asks for one; else KVIST_API_KEYS.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per request and line.")] = False,
) -> None:
    """Show what was removed, moved or rewritten and why, the whole prompt, its tokens and block hashes."""
    from cluster.captures import read_captures  # noqa: PLC0415 - keeps `--help` fast

    captures = [one for file in files for one in read_captures(file, api.value if api else None)]
    served = offline_model(model, template.value)
    size = block_size or (TINY_BLOCK_TOKENS if model == "tiny" else GPU_BLOCK_TOKENS)
    failed = False
    for captured, row in zip(captures, asyncio.run(_rows(captures, served, size, (url, api_key))), strict=True):
        failed |= "error" in row
        typer.echo(json.dumps(row, ensure_ascii=False) if as_json else "\n".join(_words(captured, row)))
    if failed:
        raise typer.Exit(1)


def offline_model(source: str, template: str) -> ServedModel:
    """A model with its default rules and without a context limit. Raises `InvalidRequest` for no such model."""
    from cluster.explain import UNLIMITED_TOKENS  # noqa: PLC0415 - keeps `--help` fast
    from cluster.models.served import load_model  # noqa: PLC0415 - same
    from cluster.prompt.canonical import Rules  # noqa: PLC0415 - same

    return load_model(model_folder(source, template), name=source, max_model_len=UNLIMITED_TOKENS, rules=Rules())


def model_folder(source: str, template: str) -> Path:
    """Where tokenizer and template are. Raises `InvalidRequest` when they are nowhere."""
    from cluster.cache_dir import cache_dir  # noqa: PLC0415 - keeps `--help` fast
    from router.errors import InvalidRequest  # noqa: PLC0415 - same
    from workers.models import resolve_model  # noqa: PLC0415 - same

    try:
        return resolve_model(source, cache_dir(), template=cast(Any, template))
    except FileNotFoundError as fault:
        raise InvalidRequest(str(fault)) from None


async def _rows(
    captures: list[Captured], served: ServedModel, block_size: int, cluster: tuple[str, str]
) -> list[dict[str, Any]]:
    return [await _row(captured, served, block_size, cluster) for captured in captures]


async def _row(captured: Captured, served: ServedModel, block_size: int, cluster: tuple[str, str]) -> dict[str, Any]:
    from cluster.explain import as_json, explain  # noqa: PLC0415 - keeps `--help` fast

    try:
        row = as_json(await explain(captured, served, block_size=block_size))
    except ClientError as fault:
        return {"error": str(fault), "where": captured.where, "api": captured.api}
    url, key = cluster
    if url:
        from cluster.standings import fetch_standings  # noqa: PLC0415 - only with --url

        row["replicas"] = fetch_standings(url, key, captured)
    return row


def _words(captured: Captured, row: dict[str, Any]) -> Iterator[str]:
    yield f"== {captured.where}"
    if "error" in row:
        yield f"cannot be read as {captured.api}: {row['error']}"
        return
    blocks = f"{len(row['block_hashes'])} full blocks of {row['block_size']}"
    yield f"{row['api']} request for {row['model']}: {row['tokens']} tokens, {blocks}"
    yield "changes:" if row["changes"] else "changes: none"
    for change in row["changes"]:
        yield f"  {change['rule']} at {change['path']}: {_short(change['before'])} -> {_short(change['after'])}"
    for warning in row["warnings"]:
        yield f"warning: {warning}"
    for replica in row.get("replicas", ()):
        yield standing_words(replica)
    yield f"block hashes: {' '.join(row['block_hashes'])}"
    yield f"tokens: {' '.join(map(str, row['token_ids']))}"
    yield "prompt:"
    yield row["canonical_text"]


def standing_words(replica: dict[str, Any]) -> str:
    """What a prompt costs on one replica, and each part of that which is not nothing."""
    parts = {
        f"wait for {replica['ahead_tokens']} of {replica['backlog_tokens']} tokens before it": replica["wait_s"],
        "its own computing": replica["compute_s"],
        "decodes beside it": replica["decodes_s"],
        "delay of those who follow": replica["others_s"],
        "live sessions' blocks driven out": replica["room_s"],
    }
    words = ", ".join([f"{what} {cost_s * 1e3:.1f} ms" for what, cost_s in parts.items() if cost_s])
    return (
        f"replica {replica['replica']}: {replica['cached_tokens']} tokens cached, "
        f"cost {replica['cost_s'] * 1e3:.1f} ms{': ' if words else ''}{words}"
    )


def _short(text: str) -> str:
    shown = json.dumps(text[:SHOWN_CHARS], ensure_ascii=False)
    return "nothing" if not text else shown + ("…" if len(text) > SHOWN_CHARS else "")
