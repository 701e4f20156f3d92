"""What is fuzzed: one module per target, named as on the command line.

`run` takes any bytes and raises only when an invariant is broken. `seeds` are inputs made with our own encoders, which
`tests/fuzz/corpus` holds beside what fuzzing found; `recorded` are inputs made from the shared fixtures when tests run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES: Final = (
    "frame", "snapshot", "engine_batch", "recording", "fleet", "messages", "chat", "completions", "responses", "output",
    "data_frame",
    "arguments", "answers",
)  # fmt: skip


class Target(Protocol):
    """What each module of this package offers."""

    def run(self, data: bytes) -> None: ...

    def seeds(self) -> Iterator[bytes]: ...

    def recorded(self, fixtures: Path) -> Iterator[bytes]: ...


def target(name: str) -> Target:
    """The target of that name, imported now: a fuzzer may want to watch the import."""
    return cast(Target, importlib.import_module(f"{__name__}.{name}"))
