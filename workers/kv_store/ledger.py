"""How many bytes the store's files take, agreed upon by every process that uses it.

Under one file lock stands one number: the bytes of all stored files and of all that writers have reserved for files
they are about to write. A writer reserves first and writes then, so the number is never less than the truth; what dies
in between leaves a reservation that the next recount gives back. A writer lives as long as the kernel holds its lock on
its own file, whatever became of its process id.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import threading
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NUMBER: Final = struct.Struct("<Q")
ALIVE: Final = "alive"
PRIVATE: Final = 0o600


class Ledger:
    """The number of one store, and this process's place among its writers."""

    def __init__(self, root: Path) -> None:
        self._writers = root / "writers"
        self._writers.mkdir(mode=0o700, exist_ok=True)
        self._number = os.open(root / "ledger", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        self._thread = threading.Lock()
        self.temporary = self._writers / uuid.uuid4().hex
        with self.locked():  # else another start takes the new folder for one that was left behind
            self.temporary.mkdir(mode=0o700)
            self._own = os.open(self.temporary / ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
            fcntl.flock(self._own, fcntl.LOCK_EX)
            os.pwrite(self._own, _NUMBER.pack(0), 0)

    def __repr__(self) -> str:
        return f"<Ledger {self.temporary.name[:8]} {self.used()} bytes>"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else reserves, evicts or counts meanwhile. The kernel frees it when a process dies."""
        with self._thread:
            fcntl.flock(self._number, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._number, fcntl.LOCK_UN)

    def used(self) -> int:
        """Bytes stored and reserved. Exact only under the lock."""
        return _read(self._number)

    def set_used(self, used: int) -> None:
        os.pwrite(self._number, _NUMBER.pack(max(0, used)), 0)

    def reserved(self) -> int:
        """What this writer has reserved."""
        return _read(self._own)

    def set_reserved(self, reserved: int) -> None:
        os.pwrite(self._own, _NUMBER.pack(reserved), 0)

    def reserved_by_all(self) -> int:
        """What living writers have reserved; folders of dead ones, with their unfinished files, are removed."""
        total = 0
        for folder in self._writers.iterdir():
            if folder == self.temporary:
                total += self.reserved()
            elif (reserved := _reserved_if_alive(folder)) is None:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                total += reserved
        return total

    def close(self) -> None:
        """Leave the writers. Safe to call twice."""
        if self._own < 0:
            return
        with self.locked():
            self.set_used(self.used() - self.reserved())
            shutil.rmtree(self.temporary, ignore_errors=True)
        os.close(self._own)
        os.close(self._number)
        self._own = self._number = -1


def _reserved_if_alive(folder: Path) -> int | None:
    with suppress(OSError):
        alive = os.open(folder / ALIVE, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(alive)
        finally:
            os.close(alive)
    return None


def _read(number: int) -> int:
    data = os.pread(number, _NUMBER.size, 0)
    return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else 0
