"""The HTTP side of Kvist: one FastAPI app over a `Backend`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from router.limits import PING_INTERVAL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cluster.api.outcomes import Report
    from cluster.backend import Backend
    from cluster.models.served import ServedModel
    from cluster.tenants import Tenants


def build_app(
    *,
    models: Mapping[str, ServedModel],
    backend: Backend,
    tenants: Tenants,
    on_outcome: Callable[[Report], None] = lambda _report: None,
    ping_interval_s: float = PING_INTERVAL_S,
) -> FastAPI:
    """The app that serves `models` (by the name clients use). `on_outcome` is called once per request, at its end."""
    return FastAPI(openapi_url=None)
