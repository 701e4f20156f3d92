"""The Serve graph that a config becomes, looked at without a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ray.serve._private.build_app import build_app as flatten

from cluster.app import build
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

CONFIG: dict[str, Any] = {
    "models": [
        {"name": "small", "source": "tiny", "replicas": 3, "engine": "sim", "gpus_per_replica": 0},
        {"name": "org/large", "source": "org/large", "gpus_per_replica": 8},
    ],
    "ingress_replicas": 2,
    "drain_s": 30,
}


def deployments(args: dict[str, Any]) -> dict[str, Any]:
    application = flatten(build(args), name="kvist", default_runtime_env={})
    return {deployment.name: deployment for deployment in application.deployments}


def test_one_ingress_stands_before_one_worker_deployment_per_model() -> None:
    """With the replicas, slots and drain time of the config, and our router for every worker."""
    found = deployments(CONFIG)
    assert set(found) == {"Ingress", "Worker-small", "Worker-org-large"}
    assert (found["Ingress"].num_replicas, found["Worker-small"].num_replicas) == (2, 3)
    for name in ("Worker-small", "Worker-org-large"):
        router = found[name]._deployment_config.request_router_config
        assert router.request_router_class == "router.serve_router:KvistRouter"
        assert found[name]._deployment_config.graceful_shutdown_timeout_s == 30


def test_more_than_one_gpu_makes_a_placement_group() -> None:
    """The replica takes the first bundle; the engine's workers find the others in the group."""
    found = deployments(CONFIG)
    assert found["Worker-small"]._replica_config.placement_group_bundles is None
    bundles = found["Worker-org-large"]._replica_config.placement_group_bundles
    assert sum(bundle["GPU"] for bundle in bundles) == len(bundles) == 8


def test_a_file_and_plain_arguments_build_the_same_graph(tmp_path: Path) -> None:
    """`serve run cluster.app:build config=FILE` and the `args` of a Serve config file."""
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    by_file, by_arguments = deployments({"config": str(path)}), deployments(CONFIG)
    assert by_file.keys() == by_arguments.keys()
    assert all(by_file[name].init_args == by_arguments[name].init_args for name in by_file if name != "Ingress")
    assert by_file["Ingress"].init_args[0] == by_arguments["Ingress"].init_args[0]


def test_every_worker_has_a_data_plane_unless_the_config_says_handle() -> None:
    """One switch for the whole cluster."""
    for changes, expected in (({}, "tcp"), ({"data_plane": "handle"}, "handle")):
        found = deployments(CONFIG | changes)
        for name in ("Worker-small", "Worker-org-large"):
            assert found[name].init_args[0]["data_plane"] == expected
    with pytest.raises(InvalidRequest, match="data_plane"):
        build(CONFIG | {"data_plane": "pigeon"})


def test_a_bad_config_does_not_become_a_graph() -> None:
    """The error is the config's own."""
    with pytest.raises(InvalidRequest, match="unknown key"):
        build({"modles": []})


def test_a_range_of_replicas_becomes_serves_autoscaling() -> None:
    scaled = {"name": "a", "source": "tiny", "engine": "sim", "autoscaling": {"min_replicas": 2, "max_replicas": 5}}
    options = deployments({"models": [scaled]})["Worker-a"]._deployment_config.autoscaling_config
    assert (options.min_replicas, options.initial_replicas, options.max_replicas) == (2, 2, 5)
    assert options.target_ongoing_requests == 32
