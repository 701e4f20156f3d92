"""The ingress as a Serve deployment: models loaded, planes started, the HTTP app on top."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cluster.config import ClusterConfig, ModelConfig, parse_config
from cluster.ingress import build_app
from cluster.models.served import Rules, ServedModel, load_model
from cluster.serve_backend import ModelPlane, ServeBackend
from cluster.tenants import Tenants
from router.fleet import Fleet
from router.policy import policy_named
from workers.models import resolve_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI
    from ray.serve.handle import DeploymentHandle

INGRESS_DEPLOYMENT: Final = "Ingress"


class Ingress:
    """One HTTP front door. It holds the whole index of every model and shares nothing with its siblings."""

    async def __init__(self, config: dict[str, Any], workers: dict[str, DeploymentHandle]) -> None:
        parsed = parse_config(config)
        self._models = await asyncio.to_thread(load_models, parsed)
        planes = {model.name: plane_of(model, workers[model.name]) for model in parsed.models}
        self._backend = ServeBackend(planes, parsed)
        await self._backend.start_planes()
        self._tenants = Tenants.sharing_default(parsed.api_keys)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_app(models=self._models, backend=self._backend, tenants=self._tenants)


def plane_of(model: ModelConfig, handle: DeploymentHandle) -> ModelPlane:
    """How this ingress reaches one model: its policy, index, events and handle."""
    fleet = Fleet(model=model.name, policy=policy_named(model.routing))
    return ModelPlane(deployment=model.deployment, fleet=fleet, handle=handle, clock=time.monotonic)


def load_models(config: ClusterConfig) -> Mapping[str, ServedModel]:
    """Every served name with its tokenizer, template and rules; names of one model share the tokenizer."""
    from cluster.app import cache_dir  # noqa: PLC0415 - the graph imports this module

    models = {}
    for model in config.models:
        folder = resolve_model(model.source, cache_dir(), template=model.template)
        for name, rules in model.served_names().items():
            models[name] = load_model(folder, name=name, max_model_len=0, rules=Rules(**rules.model_dump()))
    return models


__all__ = ["INGRESS_DEPLOYMENT", "Ingress", "Path"]
