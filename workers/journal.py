"""When requests reached a simulated engine and when it made their tokens: a bench compares it with a client's times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Journey(msgspec.Struct):
    """One request's way through an engine, in seconds of the engine's clock. `request_id` is the caller's."""

    request_id: str
    arrived_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    tokens: int = 0


class Journal:
    """Appends a `Journey` as a line of JSON for each request that leaves. Engines of several processes may share it.

    By `time.monotonic`, times of all processes of a machine compare.
    """

    def __init__(self, file: Path, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock
        self._journeys: dict[str, Journey] = {}

    def arrived(self, key: str, request_id: str, arrived_s: float) -> None:
        """A request has come; `key` is the engine's own name for it."""
        self._journeys[key] = Journey(request_id, arrived_s)

    def made_token(self, key: str) -> None:
        """The engine has made one more token."""
        journey = self._journeys[key]
        journey.last_token_s = self._clock()
        journey.tokens += 1
        if journey.first_token_s is None:
            journey.first_token_s = journey.last_token_s

    def left(self, key: str) -> None:
        """It has ended or was aborted: write it down."""
        line = msgspec.json.encode(self._journeys.pop(key))
        with self._file.open("ab") as lines:
            lines.write(line + b"\n")

    def __repr__(self) -> str:
        return f"Journal({self._file}, {len(self._journeys)} open)"


def read_journal(file: Path) -> list[Journey]:
    """All that was written so far."""
    data = file.read_bytes() if file.is_file() else b""
    return [msgspec.json.decode(line, type=Journey) for line in data.splitlines()]
