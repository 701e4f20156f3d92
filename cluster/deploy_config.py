"""The `deploy` section of a cluster file: where and on what machines the cluster runs. Only `kvist deploy` reads it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$")]
Count = Annotated[int, Field(ge=1)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Head(_Frozen):
    """The machine or pod of Ray's head. No replica runs there."""

    cpus: Count = 8
    memory_gib: Count = 32


class GpuNodes(_Frozen):
    """Machines or pods that replicas run on, between `min` and `max` of them."""

    min: Annotated[int, Field(ge=0)] = 2
    max: Count = 8
    gpus: Count = 8
    cpus: Count = 96
    memory_gib: Count = 768
    shm_gib: Count = 64

    @model_validator(mode="after")
    def _range_is_a_range(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max {self.max} is less than min {self.min}")
        return self


class Aws(_Frozen):
    """`ray up` on AWS. All in one zone: events and tokens cross between nodes."""

    region: str = "us-west-2"
    zone: str = "us-west-2a"
    head_machine: str = "m6i.2xlarge"
    gpu_machine: str = "p5.48xlarge"
    machine_image: str = "ami-EDIT-ME"
    worker_profile: str = "arn:aws:iam::111111111111:instance-profile/kvist-worker"
    disk_gb: Count = 500


class Gcp(_Frozen):
    """`ray up` on GCP."""

    project: str = "edit-me"
    region: str = "us-central1"
    zone: str = "us-central1-a"
    head_machine: str = "n2-standard-8"
    gpu_machine: str = "a3-highgpu-8g"
    gpu_kind: str = "nvidia-h100-80gb"
    machine_image: str = (
        "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
    )
    disk_gb: Count = 500


class KubeRay(_Frozen):
    """A RayService. Secrets are named here and never written into a file: docs/deploy.md shows how to make them."""

    namespace: Name = "kvist"
    redis_address: str = "redis:6379"
    redis_secret: Name = "kvist-redis"  # noqa: S105 - the name of a secret
    files_secret: Name = "kvist-files"  # noqa: S105 - same
    client_namespace_label: str = "kvist-clients"


class Deploy(_Frozen):
    """All of it. `cache_dir` is where each node keeps prepared weights: a folder that outlives pods."""

    name: Name = "kvist"
    image: str = "registry.example.com/kvist:0.1.0"
    cpu_image: str = "registry.example.com/kvist-cpu:0.1.0"
    cache_dir: Annotated[str, Field(pattern=r"^/")] = "/var/lib/kvist"
    head: Head = Head()
    gpu_nodes: GpuNodes = GpuNodes()
    aws: Aws = Aws()
    gcp: Gcp = Gcp()
    kuberay: KubeRay = KubeRay()
