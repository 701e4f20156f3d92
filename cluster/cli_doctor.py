"""`kvist doctor`: a linter for prompts. Where captured requests part, why, what it costs, and what heals it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cluster.cli_explain import Model, TemplateChoice, model_folder
from router.errors import ClientError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.doctor.diagnosis import Diagnosis
    from cluster.doctor.requests import Request

TABLE_COLUMNS = 160


def doctor(
    files: Annotated[list[Path], typer.Argument(help="Captured requests: JSON, JSONL, sessions, or folders of them.")],
    model: Model = "tiny",
    template: Annotated[TemplateChoice, typer.Option(help="Of the tiny model.")] = TemplateChoice.SYSTEM_FIRST,
    html: Annotated[Path | None, typer.Option(help="Write a page with the prompts side by side.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per pair of requests and line.")] = False,
) -> None:
    """Compare consecutive requests of each session, and sessions with each other. No cluster is needed."""
    from cluster.doctor.diagnosis import as_json as plain  # noqa: PLC0415 - keeps `--help` fast
    from cluster.doctor.diagnosis import diagnose  # noqa: PLC0415 - same
    from cluster.doctor.page import page  # noqa: PLC0415 - same
    from cluster.doctor.prompts import Reader  # noqa: PLC0415 - same
    from cluster.doctor.requests import pairs_of  # noqa: PLC0415 - same
    from cluster.models.chat_template import JinjaChatTemplate  # noqa: PLC0415 - same
    from cluster.models.served import fitted  # noqa: PLC0415 - same
    from cluster.models.tokenizer import HfTokenizer  # noqa: PLC0415 - same
    from cluster.prompt.canonical import Rules  # noqa: PLC0415 - same

    requests, errors = _read(files)
    folder = model_folder(model, template.value)
    reader = Reader(fitted(JinjaChatTemplate(folder), Rules()), HfTokenizer(folder))
    diagnoses: list[Diagnosis] = []
    for pair in pairs_of(requests):
        try:
            diagnoses.append(diagnose(pair, reader))
        except InvalidRequest as fault:
            errors.append({"error": str(fault), "where": pair.later.where})
    if html is not None:
        html.write_text(page(diagnoses), encoding="utf-8")
    if as_json:
        for row in [*map(plain, diagnoses), *errors]:
            typer.echo(json.dumps(row, ensure_ascii=False))
    else:
        _print(diagnoses, errors)
    if errors:
        raise typer.Exit(1)


def _read(files: list[Path]) -> tuple[list[Request], list[dict[str, Any]]]:
    from cluster.captures import files_of, read_captures  # noqa: PLC0415 - keeps `--help` fast
    from cluster.doctor.requests import read_request  # noqa: PLC0415 - same

    requests, errors = [], []
    for file in [file for path in files for file in files_of(path)]:
        try:
            captures = read_captures(file)
        except InvalidRequest as fault:
            errors.append({"error": str(fault), "where": str(file)})
            continue
        for captured in captures:
            try:
                requests.append(read_request(captured))
            except ClientError as fault:
                errors.append({"error": str(fault), "where": captured.where})
    return requests, errors


def _print(diagnoses: Sequence[Diagnosis], errors: Sequence[dict[str, Any]]) -> None:
    console = Console(width=TABLE_COLUMNS)
    table = Table("pair", "kind", title="Prefill tokens of each request that its predecessor had already computed")
    for name in ("tokens", "lost without rules", "lost with rules"):
        table.add_column(name, justify="right")
    table.add_column("parts at")
    for one in diagnoses:
        shown = one.before if one.before and one.before.lost_tokens else one.after
        lost = "-" if one.before is None else str(one.before.lost_tokens)
        pair = f"{Path(one.earlier).name} → {Path(one.later).name}"
        table.add_row(pair, one.kind, str(one.later_tokens), lost, str(one.after.lost_tokens), shown.path or "-")
    console.print(table)
    for one in diagnoses:
        for text in one.advice:
            console.print(f"{one.later}: {text}", highlight=False, markup=False)
    for error in errors:
        console.print(f"{error['where']}: cannot be read: {error['error']}", highlight=False, markup=False)
    console.print(f"{len(diagnoses)} pairs; the rules save {sum(one.saved_tokens for one in diagnoses)} prefill tokens")
