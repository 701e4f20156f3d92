"""A cluster that runs, as a comparison sees it."""

from __future__ import annotations

from typing import NamedTuple


class Running(NamedTuple):
    """`frontend` and `engines` are process ids, where the cluster has processes of these kinds that we started."""

    name: str
    url: str
    model: str
    frontend: tuple[int, ...] = ()
    engines: tuple[int, ...] = ()
