"""Follows the file of tenants while an ingress runs: a changed one is in force within WATCH_INTERVAL_S."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from cluster.tenant_file import read_tenants
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.tenants import Tenants

logger = logging.getLogger("ray.serve")
WATCH_INTERVAL_S: Final = 1.0


class TenantWatch:
    """Keeps `tenants` as the file says. The first reading raises `InvalidRequest`; a later file that cannot be used
    changes nothing and is named in the log once."""

    def __init__(self, path: Path, tenants: Tenants) -> None:
        self._path = path
        self._tenants = tenants
        self._seen = self._stamp()
        tenants.adopt(read_tenants(path).known())
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look again and again until the loop ends or `close`."""
        self._task = asyncio.create_task(self._follow())

    def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    def look(self) -> None:
        """Adopt the file if it has changed since the last look."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._tenants.adopt(read_tenants(self._path).known())
        except InvalidRequest as fault:
            logger.error("the tenants stay as they are: %s", fault)  # noqa: TRY400 - the traceback says nothing more
        else:
            logger.info("%s: %r in force", self._path, self._tenants)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            self.look()

    def _stamp(self) -> tuple[int, int, int]:
        """Of the file that the name leads to now: a mounted secret changes by its link, not by its name."""
        try:
            stat = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
