"""Offline checks of manifests: Ray's own schemas and nothing unknown, Kubernetes' for pods, ours for KubeRay."""

from __future__ import annotations

import copy
import json
import subprocess
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pydantic
import yaml
from pydantic import BaseModel
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema

if TYPE_CHECKING:
    from collections.abc import Iterator

Document = dict[str, Any]
KUBERNETES = "1.33"
RAY_SERVICE = json.loads((Path(__file__).parent / "rayservice.schema.json").read_text())


def ray_up_faults(document: Document) -> list[str]:
    """What `ray up` would stop at before it talks to a cloud."""
    try:
        validate_config(prepare_config(copy.deepcopy(document)))
    except (jsonschema.ValidationError, ValueError, KeyError) as fault:
        return [str(fault).splitlines()[0]]
    return []


def serve_faults(document: Document) -> list[str]:
    """What Serve's schema refuses, and every key that it does not know, which it would drop without a word."""
    faults = list(_unknown_keys(document, ServeDeploySchema, ""))
    try:
        ServeDeploySchema.model_validate(copy.deepcopy(document))
    except pydantic.ValidationError as fault:
        faults += [f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in fault.errors()]
    return faults


def core_faults(document: Document) -> list[str]:
    """A document of a kind that Kubernetes itself has."""
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as fault:
        return [f"{'.'.join(map(str, fault.path))}: {fault.message}"]
    return []


def ray_service_faults(document: Document) -> list[str]:
    """A RayService: ours, its pods as Kubernetes has them, its Serve config, and what only the operator checks."""
    found = [error.message for error in jsonschema.Draft7Validator(RAY_SERVICE).iter_errors(document)]
    if found:
        return found
    cluster = document["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": group["template"]["spec"]}
        found += core_faults(pod)
        names = [mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]
        if sorted(names) != sorted(volume["name"] for volume in pod["spec"]["volumes"]):
            found.append(f"mounts and volumes differ: {names}")
    for group in cluster["workerGroupSpecs"]:
        if not group["minReplicas"] <= group.get("replicas", group["minReplicas"]) <= group["maxReplicas"]:
            found.append(f"{group['groupName']}: replicas outside their range")
        grace_s = group["template"]["spec"].get("terminationGracePeriodSeconds", 30)
        if grace_s > document["spec"].get("rayClusterDeletionDelaySeconds", 60):
            found.append("the old cluster is deleted before its pods have drained")
    return found + serve_faults(yaml.safe_load(document["spec"]["serveConfigV2"]))


def kustomized(folder: Path) -> list[Document]:
    """What `kubectl kustomize` makes of a folder."""
    made = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=True)
    return list(yaml.safe_load_all(made.stdout))


def _unknown_keys(document: Any, model: type[BaseModel], where: str) -> Iterator[str]:
    if isinstance(document, list):
        for at, item in enumerate(document):
            yield from _unknown_keys(item, model, f"{where}[{at}]")
        return
    if not isinstance(document, dict):
        return
    known = {alias: field for name, field in model.model_fields.items() for alias in (name, field.alias) if alias}
    for key, value in document.items():
        place = f"{where}.{key}".lstrip(".")
        if key not in known:
            yield f"{place}: unknown key"
            continue
        nested = list(_models_in(known[key].annotation))
        if len(nested) == 1:
            yield from _unknown_keys(value, nested[0], place)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)
