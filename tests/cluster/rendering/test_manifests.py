"""The manifests in deploy/: as the cluster file has them, right by every schema to be had offline, broken ones not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from cluster.app import build
from cluster.cli import app
from cluster.config import load_config, parse_config
from cluster.ray_env import NODE_ENVIRONMENT
from cluster.rendering.files import render
from router.errors import InvalidRequest
from tests.cluster.rendering.validators import (
    core_faults,
    kustomized,
    ray_service_faults,
    ray_up_faults,
    serve_faults,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Document = dict[str, Any]
ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
CLOUDS = ["aws", "gcp"]
KUSTOMIZATIONS = ["base", "overlays/one-gpu-per-pod", "overlays/tp8-node", "overlays/kind-cpu"]


def loaded(path: str) -> Document:
    data: Document = yaml.safe_load((DEPLOY / path).read_text())
    return data


def ray_service(kustomization: str) -> Document:
    return next(one for one in kustomized(DEPLOY / "kuberay" / kustomization) if one["kind"] == "RayService")


def kvist(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["deploy", "render", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize("target", ["ray-up", "kuberay"])
def test_the_repositorys_files_are_what_its_cluster_file_says(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert kvist(target, "--check") == (0, "")


@pytest.mark.parametrize("target", ["ray-up", "kuberay"])
def test_a_file_that_differs_or_is_left_over_is_named(target: str, tmp_path: Path) -> None:
    given = [target, "--config", str(DEPLOY / "cluster.yaml"), "--out", str(tmp_path)]
    assert kvist(*given)[0] == 0
    (changed, *_) = sorted(tmp_path.rglob("*.yaml"))
    changed.write_text(changed.read_text() + "\n")
    (tmp_path / "old.yaml").write_text("left: over\n")
    code, words = kvist(*given, "--check")
    assert code == 1
    assert str(changed) in words
    assert "old.yaml" in words
    assert kvist(*given)[0] == 0, "rendering again mends both"
    assert kvist(*given, "--check") == (0, "")


def test_a_cluster_that_others_can_reach_is_not_rendered_without_keys() -> None:
    with pytest.raises(InvalidRequest, match="needs keys"):
        render("kuberay", parse_config({"models": [{"name": "tiny"}]}))


def test_files_that_every_node_is_given_must_be_in_one_folder() -> None:
    config = parse_config({"models": [{"name": "tiny"}], "tenants_file": "/a/t.yaml", "event_keys_file": "/b/e.json"})
    with pytest.raises(InvalidRequest, match="in one folder"):
        render("kuberay", config)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ray_up_takes_the_file(cloud: str) -> None:
    assert ray_up_faults(loaded(f"ray-up/{cloud}.yaml")) == []


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_node_has_the_environment_the_token_and_no_open_dashboard(cloud: str) -> None:
    cluster = loaded(f"ray-up/{cloud}.yaml")
    starts = [cluster["head_start_ray_commands"][-1], cluster["worker_start_ray_commands"][-1]]
    for start in starts:
        assert all(f" {name}=" in start for name in [*NODE_ENVIRONMENT, "RAY_AUTH_TOKEN_PATH"])
        assert "RAY_AUTH_MODE=token" in start
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert cluster["available_node_types"]["head"]["resources"] == {"CPU": 0, "GPU": 0}, "no replica on the head"


def test_serve_takes_the_config_and_builds_the_cluster_files_graph() -> None:
    document = loaded("ray-up/serve/serve.yaml")
    assert serve_faults(document) == []
    (application,) = document["applications"]
    assert application["import_path"] == f"{build.__module__}:{build.__name__}"
    config = load_config(DEPLOY / "cluster.yaml")
    rendered = parse_config(application["args"])
    assert rendered.models == config.models
    assert rendered.resolved_aliases() == config.resolved_aliases()
    assert (rendered.tenants_file, rendered.event_keys_file) == (config.tenants_file, config.event_keys_file)


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS)
def test_kubectl_and_every_schema_take_what_kustomize_makes(kustomization: str) -> None:
    documents = kustomized(DEPLOY / "kuberay" / kustomization)
    assert [one["kind"] for one in documents] == ["Namespace", "NetworkPolicy", "RayService"]
    faults = [ray_service_faults(one) if one["kind"] == "RayService" else core_faults(one) for one in documents]
    assert faults == [[], [], []]
    assert {one["metadata"].get("namespace", "kvist") for one in documents} == {"kvist"}


def test_pods_outlive_the_longest_stream_and_secrets_are_only_named() -> None:
    service = ray_service("base")
    drain_s = load_config(DEPLOY / "cluster.yaml").drain_s
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > drain_s
    assert service["spec"]["rayClusterDeletionDelaySeconds"] > drain_s
    assert cluster["authOptions"] == {"mode": "token"}
    assert "secretKeyRef" in cluster["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]


def gpus(kustomization: str) -> list[str | None]:
    groups = ray_service(kustomization)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    return [group["template"]["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu") for group in groups]


def test_overlays_change_the_nodes() -> None:
    assert [gpus(one) for one in KUSTOMIZATIONS] == [["8"], ["1"], ["8"], [None]]
    trial = ray_service("overlays/kind-cpu")
    serve = yaml.safe_load(trial["spec"]["serveConfigV2"])
    assert [model["engine"] for model in serve["applications"][0]["args"]["models"]] == ["sim"]
    assert "gcsFaultToleranceOptions" not in trial["spec"]["rayClusterConfig"]


def worker(document: Document) -> Document:
    group: Document = document["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    return group


def container(document: Document) -> Document:
    found: Document = worker(document)["template"]["spec"]["containers"][0]
    return found


def in_serve(document: Document, change: Callable[[Document], object]) -> None:
    serve = yaml.safe_load(document["spec"]["serveConfigV2"])
    change(serve)
    document["spec"]["serveConfigV2"] = yaml.safe_dump(serve)


BROKEN_SERVICES: dict[str, Callable[[Document], object]] = {
    "a misspelt key": lambda d: worker(d).update(minReplica=1),
    "an unknown key": lambda d: d["spec"].update(serveConfig="x"),
    "no such mode": lambda d: d["spec"]["rayClusterConfig"]["authOptions"].update(mode="tok"),
    "no template": lambda d: worker(d).pop("template"),
    "a number where Ray wants text": lambda d: worker(d)["rayStartParams"].update({"num-cpus": 0}),
    "a range upside down": lambda d: worker(d).update(minReplicas=9),
    "a port that is none": lambda d: container(d)["ports"][0].update(containerPort="http"),
    "an unknown field of a pod": lambda d: container(d).update(imagePolicy="Always"),
    "a mount without a volume": lambda d: container(d)["volumeMounts"].append({"name": "gone", "mountPath": "/gone"}),
    "deleted before it has drained": lambda d: d["spec"].update(rayClusterDeletionDelaySeconds=60),
    "an unknown key of Serve": lambda d: in_serve(d, lambda s: s["applications"][0].update(rout_prefix="/x")),
    "a bad import path": lambda d: in_serve(d, lambda s: s["applications"][0].update(import_path="nope")),
}
BROKEN_CLUSTERS: dict[str, Callable[[Document], object]] = {
    "an unknown key": lambda d: d.update(bogus=1),
    "half a CPU": lambda d: d["available_node_types"]["gpu"]["resources"].update(CPU=0.5),
    "a head of no type": lambda d: d.update(head_node_type="nobody"),
    "workers in words": lambda d: d.update(max_workers="many"),
}


@pytest.mark.parametrize("fault", BROKEN_SERVICES)
def test_a_broken_ray_service_does_not_pass(fault: str) -> None:
    document = copy.deepcopy(ray_service("base"))
    BROKEN_SERVICES[fault](document)
    assert ray_service_faults(document)


@pytest.mark.parametrize("fault", BROKEN_CLUSTERS)
def test_a_broken_cluster_file_of_ray_up_does_not_pass(fault: str) -> None:
    document = copy.deepcopy(loaded("ray-up/aws.yaml"))
    BROKEN_CLUSTERS[fault](document)
    assert ray_up_faults(document)


def test_a_broken_network_policy_does_not_pass() -> None:
    document = loaded("kuberay/base/networkpolicy.yaml")
    document["spec"]["ingress"][1]["ports"][0]["port"] = [8000]
    assert core_faults(document)
