"""The Serve graph: one ingress deployment in front of one worker deployment per model.

`kvist serve`, `serve run cluster.app:build` and a Serve config file all come here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from cluster.cache_dir import cache_dir
from cluster.config import ClusterConfig, ModelConfig, load_config, parse_config
from cluster.serve_ingress import INGRESS_DEPLOYMENT, Ingress
from cluster.tenants import hashed
from workers.replica import Worker

if TYPE_CHECKING:
    from ray.serve import Application

APPLICATION = "kvist"
INGRESS_ONGOING_REQUESTS = 4096
HEALTH_CHECK_PERIOD_S = 1.0
HEALTH_CHECK_TIMEOUT_S = 10.0
CPUS_PER_REPLICA = 0.1


def build(args: dict[str, Any]) -> Application:
    """Build the graph from a config: `args` is one, or `{"config": "FILE"}`. Raises `InvalidRequest` on a bad one."""
    if set(args) == {"config"}:
        return build_application(load_config(Path(args["config"])))
    return build_application(parse_config(args))


def build_application(config: ClusterConfig) -> Application:
    """The graph of a validated config. Touches no cluster except to ask whether it has GPUs."""
    workers = {model.name: _worker(model, config).bind(_settings(model, config)) for model in config.models}
    ingress = serve.deployment(
        serve.ingress(None)(Ingress),
        name=INGRESS_DEPLOYMENT,
        num_replicas=config.ingress_replicas,
        max_ongoing_requests=INGRESS_ONGOING_REQUESTS,
        ray_actor_options={"num_cpus": CPUS_PER_REPLICA},
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        graceful_shutdown_timeout_s=config.drain_s,
    )
    # Serve keeps what it is given: digests of keys, never the keys.
    data = config.model_dump(mode="json") | {"api_keys": [hashed(key) for key in config.api_keys]}
    bound: Application = ingress.bind(data, workers)
    return bound


def _worker(model: ModelConfig, config: ClusterConfig) -> Any:
    gpus = model.gpus_per_replica if model.gpus_per_replica is not None else _gpus_wanted(model)
    resources: dict[str, Any] = {"ray_actor_options": {"num_cpus": CPUS_PER_REPLICA, "num_gpus": gpus}}
    if gpus > 1:  # the engine starts its own workers inside the group; the replica itself takes the first bundle's CPU
        resources = {
            "ray_actor_options": {"num_cpus": CPUS_PER_REPLICA},
            "placement_group_bundles": [{"CPU": 1, "GPU": 1}] + [{"GPU": 1}] * (gpus - 1),
            "placement_group_strategy": "PACK",
        }
    return serve.deployment(
        Worker,
        name=model.deployment,
        **_replicas(model),
        max_ongoing_requests=model.max_ongoing_requests,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        graceful_shutdown_timeout_s=config.drain_s,
        request_router_config=RequestRouterConfig(request_router_class="router.serve_router:KvistRouter"),
        **resources,
    )


def _replicas(model: ModelConfig) -> dict[str, Any]:
    if model.autoscaling is not None:
        return {"autoscaling_config": model.autoscaling.serve_options()}
    return {"num_replicas": model.least_replicas}


def _gpus_wanted(model: ModelConfig) -> int:
    has_gpus = model.engine == "vllm" and ray.is_initialized() and ray.cluster_resources().get("GPU", 0) > 0
    return model.gpus if has_gpus else 0


def _settings(model: ModelConfig, config: ClusterConfig) -> dict[str, Any]:
    return {
        "model": model.name,
        "source": model.source,
        "template": model.template,
        "engine": model.engine,
        "engine_args": model.engine_args,
        "cache_dir": str(cache_dir()),
        "data_plane": config.data_plane,
        "event_keys_file": config.event_keys_file,
        "kv_store": model.kv_store.model_dump() if model.kv_store else None,
    }
