"""A RayService for KubeRay, what protects it, and overlays for other nodes.

GCS fault tolerance keeps the cluster alive when its head is replaced; pods are given longer to end than the longest
stream takes. Secrets are referenced, never written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.rendering.node_environment import node_environment
from cluster.rendering.serve_config import serve_config
from cluster.rendering.text import as_yaml

if TYPE_CHECKING:
    from cluster.config import ClusterConfig

RAY_VERSION: Final = "2.60.0"
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - in a pod, behind the network policy
GRACE_S: Final = 60  # beyond the longest stream
INITIALIZING_TIMEOUT: Final = "45m"
IDLE_S: Final = 600
TP8_GPUS: Final = 8
AUTOSCALER_RESOURCES: Final = {"cpu": "500m", "memory": "512Mi"}
PORTS: Final = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "serve": 8000, "metrics": 8080}
WORKER_PORTS: Final = ("serve", "metrics")
FILES_AT: Final = 2  # after shared memory and the cache
LABELS: Final = {"app.kubernetes.io/name": "kvist"}


def base(config: ClusterConfig) -> dict[str, list[dict[str, Any]]]:
    """Files of the base, each with its documents."""
    namespace = config.deploy.kuberay.namespace
    return {
        "namespace.yaml": [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}],
        "rayservice.yaml": [ray_service(config)],
        "networkpolicy.yaml": [network_policy(config)],
        "kustomization.yaml": [
            _kustomization(namespace, resources=["namespace.yaml", "rayservice.yaml", "networkpolicy.yaml"])
        ],
    }


def overlays(config: ClusterConfig, trial: ClusterConfig) -> dict[str, list[dict[str, Any]]]:
    """Kustomize overlays: pods of one GPU, nodes of eight, and `trial`, a cluster without GPUs, for kind."""
    namespace, nodes = config.deploy.kuberay.namespace, config.deploy.gpu_nodes
    share, has_files = nodes.gpus, config.files_folder is not None
    one = _limits(max(nodes.cpus // share, 1), max(nodes.memory_gib // share, 1), 1)
    eight = _limits(nodes.cpus, nodes.memory_gib, TP8_GPUS)
    worker = "/spec/rayClusterConfig/workerGroupSpecs/0"
    resources = f"{worker}/template/spec/containers/0/resources"
    most = {"op": "replace", "path": f"{worker}/maxReplicas", "value": nodes.max * share}
    return {
        "one-gpu-per-pod/kustomization.yaml": [
            _overlay(namespace, config, [{"op": "replace", "path": resources, "value": one}, most])
        ],
        "tp8-node/kustomization.yaml": [
            _overlay(namespace, config, [{"op": "replace", "path": resources, "value": eight}])
        ],
        "kind-cpu/kustomization.yaml": [_overlay(namespace, config, _cpu_patch(trial, worker, has_files=has_files))],
    }


def ray_service(config: ClusterConfig) -> dict[str, Any]:
    """The RayService."""
    deploy, kuberay = config.deploy, config.deploy.kuberay
    drain_s = round(config.drain_s) + GRACE_S
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {
            "name": deploy.name,
            "labels": dict(LABELS),
            "annotations": {"ray.io/initializing-timeout": INITIALIZING_TIMEOUT},
        },
        "spec": {
            "rayClusterDeletionDelaySeconds": drain_s,
            "excludeHeadPodFromServeSvc": True,
            "upgradeStrategy": {"type": "NewCluster"},
            "serveConfigV2": as_yaml(serve_config(config, host=ALL_ADDRESSES)),
            "rayClusterConfig": {
                "rayVersion": RAY_VERSION,
                "enableInTreeAutoscaling": True,
                "autoscalerOptions": {
                    "version": "v2",
                    "idleTimeoutSeconds": IDLE_S,
                    "resources": {"limits": dict(AUTOSCALER_RESOURCES), "requests": dict(AUTOSCALER_RESOURCES)},
                },
                "authOptions": {"mode": "token"},
                "gcsFaultToleranceOptions": {
                    "redisAddress": kuberay.redis_address,
                    "redisPassword": {"valueFrom": {"secretKeyRef": {"name": kuberay.redis_secret, "key": "password"}}},
                },
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": ALL_ADDRESSES},
                    "template": _pod(config, "ray-head", ports=tuple(PORTS), drain_s=drain_s),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "gpu",
                        "replicas": deploy.gpu_nodes.min,
                        "minReplicas": deploy.gpu_nodes.min,
                        "maxReplicas": deploy.gpu_nodes.max,
                        "rayStartParams": {},
                        "template": _pod(config, "ray-worker", ports=WORKER_PORTS, drain_s=drain_s),
                    }
                ],
            },
        },
    }


def network_policy(config: ClusterConfig) -> dict[str, Any]:
    """Clients reach Serve's port only; everything else is between the cluster's own pods."""
    kuberay = config.deploy.kuberay
    cluster = {"matchLabels": {"ray.io/is-ray-node": "yes"}}
    clients = {"namespaceSelector": {"matchLabels": {kuberay.client_namespace_label: "yes"}}}
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kuberay-operator"}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{config.deploy.name}-nodes", "labels": dict(LABELS)},
        "spec": {
            "podSelector": cluster,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": cluster}]},
                {"from": [clients], "ports": [{"protocol": "TCP", "port": PORTS["serve"]}]},
                {"from": [operator], "ports": [{"protocol": "TCP", "port": PORTS["dashboard"]}]},
            ],
        },
    }


def _pod(config: ClusterConfig, name: str, *, ports: tuple[str, ...], drain_s: int) -> dict[str, Any]:
    deploy, is_head = config.deploy, name == "ray-head"
    resources = (
        _limits(deploy.head.cpus, deploy.head.memory_gib, 0)
        if is_head
        else _limits(deploy.gpu_nodes.cpus, deploy.gpu_nodes.memory_gib, deploy.gpu_nodes.gpus)
    )
    mounts, volumes = _volumes(config)
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": drain_s,
        "initContainers": [_writable_cache(deploy.image, deploy.cache_dir)],
        "containers": [
            {
                "name": name,
                "image": deploy.image,
                "ports": [{"containerPort": PORTS[port], "name": port} for port in ports],
                "env": [{"name": key, "value": value} for key, value in node_environment(config).items()],
                "resources": resources,
                "volumeMounts": mounts,
                "securityContext": {"allowPrivilegeEscalation": False},
            }
        ],
        "volumes": volumes,
    }
    if not is_head:
        spec["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return {"metadata": {"labels": dict(LABELS)}, "spec": spec}


def _volumes(config: ClusterConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Shared memory, the node's folder of weights, and our own files from their secret."""
    deploy = config.deploy
    mounts: list[dict[str, Any]] = [
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - where shared memory is
        {"name": "cache", "mountPath": deploy.cache_dir},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{deploy.gpu_nodes.shm_gib}Gi"}},
        {"name": "cache", "hostPath": {"path": deploy.cache_dir, "type": "DirectoryOrCreate"}},
    ]
    folder = config.files_folder
    if folder is not None:
        mounts.append({"name": "files", "mountPath": folder, "readOnly": True})
        volumes.append({"name": "files", "secret": {"secretName": deploy.kuberay.files_secret}})
    return mounts, volumes


def _writable_cache(image: str, folder: str) -> dict[str, Any]:
    """A folder of the machine belongs to root until somebody changes that."""
    return {
        "name": "cache",
        "image": image,
        "command": ["chmod", "1777", folder],
        "securityContext": {"runAsUser": 0, "allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "cache", "mountPath": folder}],
    }


def _limits(cpus: int, memory_gib: int, gpus: int) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": f"{memory_gib}Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {"limits": amounts, "requests": dict(amounts)}


def _cpu_patch(trial: ClusterConfig, worker: str, *, has_files: bool) -> list[dict[str, Any]]:
    head = "/spec/rayClusterConfig/headGroupSpec"
    container = "template/spec/containers/0"
    small = _limits(2, 6, 0)
    pods = (head, worker)
    values = {
        "/spec/serveConfigV2": as_yaml(serve_config(trial, host=ALL_ADDRESSES)),
        f"{worker}/replicas": 1,
        f"{worker}/minReplicas": 1,
        f"{worker}/maxReplicas": 1,
    }
    for pod in pods:
        values |= {
            f"{pod}/{part}/image": trial.deploy.cpu_image for part in (container, "template/spec/initContainers/0")
        }
        values[f"{pod}/{container}/resources"] = small
    gone = ["/spec/rayClusterConfig/gcsFaultToleranceOptions"]
    if has_files:  # the last mount and volume of each pod
        gone += [f"{pod}/{container}/volumeMounts/{FILES_AT}" for pod in pods]
        gone += [f"{pod}/template/spec/volumes/{FILES_AT}" for pod in pods]
    replaced = [{"op": "replace", "path": path, "value": value} for path, value in values.items()]
    return replaced + [{"op": "remove", "path": path} for path in gone]


def _overlay(namespace: str, config: ClusterConfig, patch: list[dict[str, Any]]) -> dict[str, Any]:
    target = {"group": "ray.io", "version": "v1", "kind": "RayService", "name": config.deploy.name}
    patches = [{"target": target, "patch": as_yaml(patch)}]
    return _kustomization(namespace, resources=["../../base"]) | {"patches": patches}


def _kustomization(namespace: str, *, resources: list[str]) -> dict[str, Any]:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": resources,
    }
