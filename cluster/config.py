"""One typed configuration for a cluster. Validated once, frozen, unknown keys refused."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cluster.autoscaling import Autoscaling  # noqa: TC001 - pydantic reads it
from cluster.config_words import lines_of
from cluster.deploy_config import Deploy
from cluster.kv_store_config import KvStore  # noqa: TC001 - pydantic reads it
from cluster.prompt.inline_system import InlineSystem  # noqa: TC001 - pydantic reads it
from cluster.prompt.preamble import compile_lines
from cluster.tenants import DIGEST_PREFIX, digest_of
from router.errors import InvalidRequest, ModelUnusable
from router.limits import FLUSH_MS, MAX_FLUSH_MS, MAX_RESUMES, MAX_RETRIES

if TYPE_CHECKING:
    from pathlib import Path

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Alias = Annotated[str, Field(pattern=r"^[A-Za-z0-9*?][A-Za-z0-9._:/*?-]{0,127}$")]
DEFAULT_REPLICAS = 2
CODING_AGENTS_ALIAS = "claude-*"
Key = Annotated[str, Field(pattern=r"^[\x21-\x7e]+$")]  # what every HTTP client can send as it is


class Rules(_Frozen):
    """Switches of the canonical rules, per served name; see `cluster.prompt.canonical.Rules`, which has the same."""

    strip_anthropic_preamble: bool = True
    volatile_lines: tuple[str, ...] = ()
    equivalent_forms: bool = True
    deferred_tools: bool = True
    media_placeholders: bool = True
    leading_system: bool = True
    inline_system: InlineSystem = "user"
    keep_thinking: bool = True
    exact_turns: bool = True
    literal_marks: bool = True

    @field_validator("volatile_lines")
    @classmethod
    def _patterns_compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        try:
            compile_lines(patterns)
        except ModelUnusable as fault:
            raise ValueError(str(fault)) from None
        return patterns


class ModelConfig(_Frozen):
    """One model deployment: where its weights come from, how many replicas serve it, under which names.

    `source` is "tiny", "smollm2", a folder, or a hub id. `engine_args` go to the engine as they are (vLLM's
    AsyncEngineArgs, or the simulator's settings). `variants` serve the same replicas under other names, other rules.
    `tool_parser` and `reasoning_parser` are vLLM's names, "none", or "auto": found by the model's chat template.
    Without `replicas` or `autoscaling` there are two replicas. With `kv_store` those of one node share KV blocks.
    `gpus_per_replica` None means tensor × pipeline parallel size where the cluster has GPUs, else none.
    """

    name: Name
    source: str = "smollm2"
    template: Literal["system-first", "tools-first"] = "system-first"
    replicas: Annotated[int, Field(ge=1, le=1024)] | None = None
    autoscaling: Autoscaling | None = None
    engine: Literal["vllm", "sim"] = "vllm"
    engine_args: dict[str, Any] = {}
    kv_store: KvStore | None = None
    gpus_per_replica: Annotated[int, Field(ge=0)] | None = None
    max_ongoing_requests: Annotated[int, Field(ge=1)] = 256
    routing: Literal["kvist", "round-robin"] = "kvist"
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    rules: Rules = Rules()
    variants: dict[Name, Rules] = {}

    @field_validator("engine_args")
    @classmethod
    def _arguments_are_of_the_right_kind(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            size = arguments.get(name, 1)
            if type(size) is not int or size < 1:
                raise ValueError(f"{name} must be a whole number from 1, not {size!r}")
        transfer = arguments.get("kv_transfer_config")
        if transfer is not None and (not isinstance(transfer, dict) or "kv_connector" not in transfer):
            raise ValueError("kv_transfer_config must be a mapping with a `kv_connector`; docs/deploy.md has examples")
        return arguments

    @model_validator(mode="after")
    def _replicas_are_said_once(self) -> Self:
        if self.replicas is not None and self.autoscaling is not None:
            raise ValueError("replicas and autoscaling exclude each other: a fixed number, or a range")
        return self

    @model_validator(mode="after")
    def _blocks_go_one_way(self) -> Self:
        if self.kv_store is not None and "kv_transfer_config" in self.engine_args:
            raise ValueError("kv_store and engine_args.kv_transfer_config exclude each other: each is a connector")
        if self.kv_store is not None and self.engine == "sim":
            raise ValueError("kv_store is of vLLM's engines: a simulated one has no blocks to share")
        return self

    @property
    def least_replicas(self) -> int:
        """How many there are at the least, and at the start."""
        return self.autoscaling.min_replicas if self.autoscaling else self.replicas or DEFAULT_REPLICAS

    @property
    def deployment(self) -> str:
        """Name of the Serve deployment of this model's workers."""
        return "Worker-" + "".join(c if c.isalnum() or c in "._-" else "-" for c in self.name)

    @property
    def gpus(self) -> int:
        """GPUs of one replica when the cluster has any: tensor × pipeline parallel size."""
        tensor: int = self.engine_args.get("tensor_parallel_size", 1)
        pipeline: int = self.engine_args.get("pipeline_parallel_size", 1)
        return tensor * pipeline

    def served_names(self) -> dict[str, Rules]:
        """Every name this model answers to, with the rules of that name."""
        return {self.name: self.rules, **self.variants}


class ClusterConfig(_Frozen):
    """Everything `kvist serve` and `serve run` need. `api_keys` empty means no authentication (loopback only).

    `aliases` are further names, with `*` and `?`, and the served names they lead to; None means that the ids Claude
    Code sends lead to the first model. `data_plane` "handle" sends tokens through Serve's handle only.
    `api_keys` all open one tenant, and may be digests (`sha256:…`); `tenants_file` tells several apart (see
    `cluster.tenant_file`), is read by every ingress on its own machine, and followed when it changes.
    With `event_keys_file` (see `router.event_keys`) replicas and ingresses prove to each other whose they are.
    When a replica fails, a generation goes to another one at most `retries` times before its first token and `resumes`
    times after it.
    Of a stream's events those that can wait leave `flush_ms` apart: more saves CPU, 0 sends every token by itself.
    """

    models: Annotated[tuple[ModelConfig, ...], Field(min_length=1)]
    aliases: dict[Alias, Name] | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    ingress_replicas: Annotated[int, Field(ge=1, le=256)] = 1
    drain_s: Annotated[float, Field(gt=0)] = 600.0
    flush_ms: Annotated[float, Field(ge=0, le=MAX_FLUSH_MS)] = FLUSH_MS
    data_plane: Literal["tcp", "handle"] = "tcp"
    retries: Annotated[int, Field(ge=0, le=MAX_RETRIES)] = MAX_RETRIES
    resumes: Annotated[int, Field(ge=0, le=MAX_RESUMES)] = MAX_RESUMES
    api_keys: tuple[Key, ...] = ()
    tenants_file: str | None = None
    event_keys_file: str | None = None
    deploy: Deploy = Deploy()

    @property
    def known_key(self) -> str | None:
        """A key that opens the cluster, when the config has one in clear text."""
        return next((key for key in self.api_keys if not key.startswith(DIGEST_PREFIX)), None)

    @property
    def needs_key(self) -> bool:
        """Whether requests without a key are refused."""
        return bool(self.api_keys or self.tenants_file)

    @property
    def files_folder(self) -> str | None:
        """The folder of `tenants_file` and `event_keys_file` on every node; None without them. Raises `InvalidRequest`
        when they are in two: they are handed out together."""
        files = [PurePosixPath(file) for file in (self.tenants_file, self.event_keys_file) if file]
        if len({file.parent for file in files}) > 1:
            raise InvalidRequest("tenants_file and event_keys_file must be in one folder, which every node is given")
        return str(files[0].parent) if files else None

    @field_validator("api_keys")
    @classmethod
    def _digests_are_whole(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        try:
            list(map(digest_of, keys))
        except InvalidRequest as fault:
            raise ValueError(str(fault)) from None
        return keys

    @model_validator(mode="after")
    def _keys_in_one_place(self) -> Self:
        if self.api_keys and self.tenants_file:
            raise ValueError("api_keys and tenants_file exclude each other: put every key into the file")
        return self

    @field_validator("models")
    @classmethod
    def _names_are_unique(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        names = [name for model in models for name in model.served_names()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"served twice: {', '.join(twice)}; every name and variant must be unique")
        deployments = [model.deployment for model in models]
        if len(set(deployments)) < len(deployments):
            raise ValueError("two model names differ only in characters that a deployment name cannot hold")
        return models

    @model_validator(mode="after")
    def _aliases_lead_somewhere(self) -> Self:
        served = {name for model in self.models for name in model.served_names()}
        lost = sorted(set((self.aliases or {}).values()) - served)
        if lost:
            raise ValueError(f"aliases lead to {', '.join(lost)}, which no model is served as")
        return self

    def resolved_aliases(self) -> dict[str, str]:
        """The aliases in force."""
        return {CODING_AGENTS_ALIAS: self.models[0].name} if self.aliases is None else dict(self.aliases)

    @model_validator(mode="after")
    def _keys_off_loopback(self) -> Self:
        if self.host not in LOOPBACK_HOSTS and not self.needs_key:
            raise ValueError(
                f"host {self.host} is reachable from other machines, so a key is required: "
                "pass --api-key, set KVIST_API_KEYS or tenants_file, or serve on 127.0.0.1"
            )
        return self


def load_config(path: Path) -> ClusterConfig:
    """Read a YAML or JSON file. Raises `InvalidRequest` with the file, the place and what to do."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise InvalidRequest(f"{path}: cannot be read ({fault.strerror})") from fault
    except yaml.YAMLError as fault:
        raise InvalidRequest(f"{path}: is not YAML: {fault}") from fault
    if not isinstance(data, dict):
        raise InvalidRequest(f"{path}: must be a mapping with a key `models`")
    return parse_config(data, where=str(path))


def parse_config(data: dict[str, Any], *, where: str = "config") -> ClusterConfig:
    """Validate plain data. Raises `InvalidRequest` naming each bad key."""
    try:
        return ClusterConfig.model_validate(data)
    except ValidationError as fault:
        raise InvalidRequest(f"{where}: " + "; ".join(lines_of(fault, ClusterConfig))) from fault
