"""The diagnosis as one HTML page that needs nothing else: for each pair the two prompts, aligned line by line."""

from __future__ import annotations

from difflib import SequenceMatcher
from html import escape
from typing import TYPE_CHECKING, Final

from cluster.doctor.parting import common_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cluster.doctor.diagnosis import Diagnosis

KEPT_LINES: Final = 3  # of what both share, before the parting
MOST_LINES: Final = 400  # compared after it
MOST_CHARS: Final = 400  # of a line
_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>kvist doctor</title><style>
body { font: 14px/1.4 system-ui, sans-serif; margin: 2rem; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
td { font: 12px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; vertical-align: top;
     padding: 0 .5rem; width: 50%; }
.gone { background: #fdd; } .new { background: #dfd; } .same { color: #777; }
summary { cursor: pointer; } li { margin: .2rem 0; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } .gone { background: #522; }
  .new { background: #252; } .same { color: #888; } }
</style></head><body><h1>kvist doctor</h1>
"""


def page(diagnoses: Sequence[Diagnosis]) -> str:
    """The whole page. Every text of a request is escaped."""
    return "".join([_HEAD, *(part for one in diagnoses for part in _section(one)), "</body></html>\n"])


def _section(one: Diagnosis) -> Iterator[str]:
    yield f"<h2>{escape(one.earlier)} → {escape(one.later)}</h2><ul>"
    if one.before is not None:
        yield f"<li>without rules: {one.before.shared_tokens} tokens shared, {one.before.lost_tokens} lost</li>"
    yield f"<li>with rules: {one.after.shared_tokens} tokens shared, {one.after.lost_tokens} lost</li>"
    yield from (f"<li>{escape(text)}</li>" for text in one.advice)
    yield "</ul>"
    for title, (earlier, later) in zip(("with rules", "without rules"), one.texts, strict=False):
        yield f"<details><summary>prompts {title}</summary><table>"
        yield from _rows(earlier.splitlines(), later.splitlines())
        yield "</table></details>"


def _rows(earlier: list[str], later: list[str]) -> Iterator[str]:
    shared = common_prefix(earlier, later)
    start = max(0, shared - KEPT_LINES)
    if start:
        yield f'<tr class="same"><td colspan="2">… {start} equal lines …</td></tr>'
    old, new = earlier[start : start + MOST_LINES], later[start : start + MOST_LINES]
    for kind, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for row in range(max(j - i, m - k)):
            left = old[i + row] if i + row < j else ""
            right = new[k + row] if k + row < m else ""
            yield _row(left, right, same=kind == "equal")
    if max(len(earlier), len(later)) > start + MOST_LINES:
        yield '<tr class="same"><td colspan="2">… more lines …</td></tr>'


def _row(left: str, right: str, *, same: bool) -> str:
    if same:
        return f'<tr class="same"><td>{_cut(left)}</td><td>{_cut(right)}</td></tr>'
    return f'<tr><td class="gone">{_cut(left)}</td><td class="new">{_cut(right)}</td></tr>'


def _cut(line: str) -> str:
    return escape(line if len(line) <= MOST_CHARS else f"{line[:MOST_CHARS]}…")
