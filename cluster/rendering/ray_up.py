"""Cluster files of `ray up` for AWS and GCP: a head without replicas, and machines with GPUs.

Ray's ports stay between the nodes, its dashboard on the head's loopback, and whoever calls it needs the token.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from cluster.rendering.node_environment import TOKEN_PATH, node_environment

if TYPE_CHECKING:
    from cluster.config import ClusterConfig

HEAD, GPU = "head", "gpu"
GCS_PORT: Final = 6379
METRICS_PORT: Final = 8080
OBJECTS_PORT: Final = 8076
IDLE_MINUTES: Final = 15
SERVE_FILE: Final = "/home/ray/serve/serve.yaml"
LOCAL_SERVE, LOCAL_FILES, LOCAL_TOKEN = "./serve", "./files", "./token"


def aws(config: ClusterConfig) -> dict[str, Any]:
    """The file for AWS."""
    cloud = config.deploy.aws
    provider = {
        "type": "aws",
        "region": cloud.region,
        "availability_zone": cloud.zone,
        "cache_stopped_nodes": False,
        "use_internal_ips": True,
        "security_group": {"GroupName": f"{config.deploy.name}-nodes"},
    }
    disk = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": cloud.disk_gb, "VolumeType": "gp3"}}]
    machine = {"ImageId": cloud.machine_image, "BlockDeviceMappings": disk}
    head = {"InstanceType": cloud.head_machine, **machine}
    gpu = {"InstanceType": cloud.gpu_machine, **machine, "IamInstanceProfile": {"Arn": cloud.worker_profile}}
    return _cluster(config, provider, {HEAD: head, GPU: gpu})


def gcp(config: ClusterConfig) -> dict[str, Any]:
    """The file for GCP."""
    cloud = config.deploy.gcp
    provider = {
        "type": "gcp",
        "project_id": cloud.project,
        "region": cloud.region,
        "availability_zone": cloud.zone,
        "cache_stopped_nodes": False,
        "use_internal_ips": True,
    }
    image = {"sourceImage": cloud.machine_image, "diskSizeGb": cloud.disk_gb}
    disks = {"disks": [{"boot": True, "autoDelete": True, "type": "PERSISTENT", "initializeParams": image}]}
    head = {"machineType": cloud.head_machine, **disks}
    kind = f"projects/{cloud.project}/zones/{cloud.zone}/acceleratorTypes/{cloud.gpu_kind}"
    gpu = {
        "machineType": cloud.gpu_machine,
        **disks,
        "guestAccelerators": [{"acceleratorType": kind, "acceleratorCount": config.deploy.gpu_nodes.gpus}],
        "scheduling": [{"onHostMaintenance": "TERMINATE"}, {"automaticRestart": True}],
        "metadata": {"items": [{"key": "install-nvidia-driver", "value": "True"}]},
    }
    return _cluster(config, provider, {HEAD: head, GPU: gpu})


def _cluster(config: ClusterConfig, provider: dict[str, Any], machines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    deploy = config.deploy
    nodes = deploy.gpu_nodes
    return {
        "cluster_name": deploy.name,
        "max_workers": nodes.max,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": IDLE_MINUTES,
        "docker": {
            "image": deploy.image,
            "container_name": "kvist",
            "pull_before_run": True,
            "run_options": [
                "--ulimit nofile=65536:65536",
                f"--shm-size={nodes.shm_gib}g",
                f"-v {deploy.cache_dir}:{deploy.cache_dir}",
            ],
        },
        "provider": provider,
        "auth": {"ssh_user": "ubuntu"},
        "available_node_types": {
            # Without a CPU that Ray knows of no replica lands on the head; Serve's controller and proxy need none.
            HEAD: {"resources": {"CPU": 0, "GPU": 0}, "labels": {"role": HEAD}, "node_config": machines[HEAD]},
            GPU: {
                "min_workers": nodes.min,
                "max_workers": nodes.max,
                "resources": {"CPU": nodes.cpus, "GPU": nodes.gpus},
                "labels": {"role": GPU},
                "node_config": machines[GPU],
            },
        },
        "head_node_type": HEAD,
        "file_mounts": _file_mounts(config),
        "initialization_commands": [f"sudo mkdir -p {deploy.cache_dir} && sudo chmod 1777 {deploy.cache_dir}"],
        "setup_commands": [],
        "head_setup_commands": [],
        "worker_setup_commands": [],
        "head_start_ray_commands": ["ray stop", _start(config, f"--head --port={GCS_PORT} {_HEAD_OPTIONS}")],
        "worker_start_ray_commands": ["ray stop", _start(config, f"--address=$RAY_HEAD_IP:{GCS_PORT}")],
    }


_HEAD_OPTIONS: Final = "--autoscaling-config=~/ray_bootstrap_config.yaml --dashboard-host=127.0.0.1"


def _start(config: ClusterConfig, options: str) -> str:
    """The flags stand before `ray start`: Serve reads them once, in every process."""
    flags = node_environment(config) | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": TOKEN_PATH}
    words = " ".join(f"{name}={value}" for name, value in flags.items())
    ports = f"--object-manager-port={OBJECTS_PORT} --metrics-export-port={METRICS_PORT}"
    return f"ulimit -n 65536; env {words} ray start {options} {ports}"


def _file_mounts(config: ClusterConfig) -> dict[str, str]:
    """Folders, for single files lose their place when they change: the Serve config, the token, and our own files."""
    mounts = {str(PurePosixPath(SERVE_FILE).parent): LOCAL_SERVE, str(PurePosixPath(TOKEN_PATH).parent): LOCAL_TOKEN}
    return mounts | ({config.files_folder: LOCAL_FILES} if config.files_folder else {})
