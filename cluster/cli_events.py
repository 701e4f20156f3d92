"""`kvist events`: an operator's way to debug a recording of an engine's KV events, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from router.errors import InvalidRequest
from workers.recording import parse, replay


def events(
    files: Annotated[list[Path], typer.Argument(help="Recordings: JSONL of base64 frames.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Play recorded engine frames through the real relay: a verdict per frame, and what is resident after it."""
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as fault:
            raise InvalidRequest(f"{path}: cannot be read: {fault}") from None
        for row in replay(parse(lines, where=str(path))):
            typer.echo(json.dumps(row) if as_json else _words(row))


def _words(row: dict[str, Any]) -> str:
    held = ", ".join(f"{len(hashes)} {medium}" for medium, hashes in row["resident"].items()) or "none"
    name = row.get("id") or " ".join(str(part) for part in (row.get("variant"), row["seq"]) if part is not None)
    after = "" if "follow_up_ok" not in row else f"; follow-up {'handled' if row['follow_up_ok'] else 'LOST'}"
    reasons = f" ({'; '.join(row['reasons'])})" if row["reasons"] else ""
    return f"{name}: {row['verdict']}{reasons}; resident blocks: {held}{after}"
