"""The ingress as a Serve deployment: models loaded, planes started, the HTTP app on top."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cluster.cache_dir import cache_dir
from cluster.config import ClusterConfig, ModelConfig, parse_config
from cluster.durable import DurableBackend
from cluster.exchange import Pacing
from cluster.ingress import build_app
from cluster.models.served import ServedModel, load_model
from cluster.output.families import Family
from cluster.prompt.canonical import Rules
from cluster.ray_metrics import RayMetrics
from cluster.request_log import recorder
from cluster.serve_backend import ServeBackend
from cluster.serve_plane import ModelPlane
from cluster.tenant_watch import TenantWatch
from cluster.tenants import Tenants
from router.errors import InvalidRequest, ReplicaDied
from router.event_keys import EventKeys
from router.fleet import Fleet
from router.policy import policy_named
from router.retry import Tenacity
from workers.models import resolve_model

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve.handle import DeploymentHandle

    from router.curve import ClientCurve

INGRESS_DEPLOYMENT: Final = "Ingress"


class Ingress:
    """One HTTP front door. It holds the whole index of every model and shares nothing with its siblings."""

    # Serve awaits the constructor of a deployment.
    async def __init__(self, config: dict[str, Any], workers: dict[str, DeploymentHandle]) -> None:  # type: ignore[misc]
        parsed = parse_config(config)
        self._models = await asyncio.to_thread(load_models, parsed)
        self._aliases = parsed.resolved_aliases()
        self._pacing = Pacing(flush_ms=parsed.flush_ms)
        self._tenacity = Tenacity(retries=parsed.retries, resumes=parsed.resumes)
        planes: dict[str, ModelPlane] = {}
        for model in parsed.models:
            planes |= dict.fromkeys(model.served_names(), plane_of(model, workers[model.name], curve_of(parsed)))
        self._backend = ServeBackend(planes, expected_replicas=sum(model.least_replicas for model in parsed.models))
        self._metrics = RayMetrics()
        await self._backend.start_planes(self._metrics)
        self._tenants = Tenants.sharing_default(parsed.api_keys, ingresses=parsed.ingress_replicas)
        if parsed.tenants_file is not None:
            self._watch = TenantWatch(Path(parsed.tenants_file), self._tenants)
            self._watch.start()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_app(
            models=self._models,
            aliases=self._aliases,
            backend=DurableBackend(self._backend, tenacity=self._tenacity, clock=time.monotonic),
            tenants=self._tenants,
            on_outcome=recorder(self._metrics, self._models),
            pacing=self._pacing,
        )

    def check_health(self) -> None:
        """Raise when replicas' events no longer arrive; Serve then replaces this ingress."""
        if self._backend.fault is not None:
            raise ReplicaDied(self._backend.fault)


def curve_of(config: ClusterConfig) -> ClientCurve | None:
    """The keys that this ingress shows to replicas' event sockets, if they ask for any."""
    return None if config.event_keys_file is None else EventKeys.read(Path(config.event_keys_file)).for_ingresses


def plane_of(model: ModelConfig, handle: DeploymentHandle, curve: ClientCurve | None) -> ModelPlane:
    """How this ingress reaches one model: its policy, index, events and handle."""
    fleet = Fleet(model=model.name, policy=policy_named(model.routing))
    return ModelPlane(deployment=model.deployment, fleet=fleet, handle=handle, clock=time.monotonic, curve=curve)


def load_models(config: ClusterConfig) -> dict[str, ServedModel]:
    """Every served name with its tokenizer, template and rules. Raises `InvalidRequest` with a plain reason."""
    models = {}
    for model in config.models:
        folder = resolve_model(model.source, cache_dir(), template=model.template)
        window = context_window(model, folder)
        parsers = Family(model.tool_parser, model.reasoning_parser)
        for name, rules in model.served_names().items():
            canonical = Rules(**rules.model_dump())
            models[name] = load_model(folder, name=name, max_model_len=window, rules=canonical, parsers=parsers)
            models[name].warm()
    return models


def context_window(model: ModelConfig, folder: Path) -> int:
    """Tokens of prompt and answer together: the engine's own setting, else what the model was made for."""
    if "max_model_len" in model.engine_args:
        return _tokens(model.engine_args["max_model_len"])
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    window = config.get("max_position_embeddings") or (config.get("text_config") or {}).get("max_position_embeddings")
    if window is None:
        raise InvalidRequest(f"model {model.name}: its config names no context window; set engine_args.max_model_len")
    return int(window)


def _tokens(length: object) -> int:
    """A length as vLLM reads it: a number, or one with k (thousand), K (1024), m or M behind it."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", str(length).strip())
    if match is None:
        raise InvalidRequest(f"engine_args.max_model_len is {length!r}: say a number of tokens, such as 131072 or 128K")
    return int(float(match[1]) * {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20}[match[2]])
