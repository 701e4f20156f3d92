"""The README's table: the page of behaviours without its details, a row a behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGIN: Final = "<!-- conformance -->"
END: Final = "<!-- /conformance -->"
_SHOWN: Final = {"yes": "yes", "partly": "partly", "no": "**no**", "source": "source"}


def block_of(page: str) -> str:
    """The table that `docs/conformance.md` comes down to."""
    rows = [row for row in map(_cells, page.splitlines()) if row is not None]
    head = next(row for row in rows if row[0] == "behaviour")
    lines = ["| " + " | ".join(["behaviour", *head[2:]]) + " |", "|---" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join([row[1], *map(_status, row[2:])]) + " |" for row in _behaviours(rows)]
    return "\n".join([BEGIN, *lines, END])


def with_block(readme: str, page: str) -> str:
    """The README with its table as the page has it."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{block_of(page)}{after}"


def _behaviours(rows: list[list[str]]) -> Iterator[list[str]]:
    return (row for row in rows if row[0].startswith("`"))


def _cells(line: str) -> list[str] | None:
    if not line.startswith("| "):
        return None
    return [cell.strip() for cell in line.strip("| ").split(" | ")]


def _status(cell: str) -> str:
    word = cell.replace("*", "").partition(":")[0].strip()
    return _SHOWN[word]
