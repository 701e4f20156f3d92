"""The files of a run: NAME.json, NAME.csv, NAME.jsonl and NAME.html."""

from __future__ import annotations

from typing import TYPE_CHECKING

from load_tests.report.html import render
from load_tests.swarm.ledger import write_ledger
from load_tests.swarm.summary import write_summary
from load_tests.swarm.tables import as_csv

if TYPE_CHECKING:
    from pathlib import Path

    from load_tests.swarm.run import Result


def write_results(result: Result, folder: Path) -> list[Path]:
    """Write all of them, named by the summary's label, into `folder`, which is made when missing."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / result.summary.label
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("json", "csv", "jsonl")]
    write_summary(result.summary, paths[0])
    paths[1].write_text(as_csv(result.summary), encoding="utf-8")
    write_ledger(result.entries, paths[2])
    page = stem.with_name(f"{stem.name}.html")
    page.write_text(render(result.summary, result.entries), encoding="utf-8")
    return [*paths, page]
