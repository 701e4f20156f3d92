"""The files of a run: NAME.json, NAME.csv, NAME.jsonl, and NAME.html where the report's package is there."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from load_tests.swarm.ledger import write_ledger
from load_tests.swarm.summary import write_summary
from load_tests.swarm.tables import as_csv

if TYPE_CHECKING:
    from pathlib import Path

    from load_tests.swarm.run import Result

REPORT: Final = "load_tests.report.html"


def write_results(result: Result, folder: Path) -> list[Path]:
    """Write all of them, named by the summary's label, into `folder`, which is made when missing."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / result.summary.label
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("json", "csv", "jsonl")]
    write_summary(result.summary, paths[0])
    paths[1].write_text(as_csv(result.summary), encoding="utf-8")
    write_ledger(result.entries, paths[2])
    page = stem.with_name(f"{stem.name}.html")
    return [*paths, page] if write_page(page, "render", result.summary, result.entries) else paths


def write_page(path: Path, name: str, *given: object) -> bool:
    """Write what the report's function of this name makes of `given`; False where the report's package is not there."""
    try:
        report = import_module(REPORT)
    except ModuleNotFoundError:
        return False
    path.write_text(getattr(report, name)(*given), encoding="utf-8")
    return True
