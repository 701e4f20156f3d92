"""What `kvist serve` prints when every replica is warm."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from cluster.probe import url_of

if TYPE_CHECKING:
    from cluster.config import ClusterConfig

CLAUDE_CODE_MIN_CONTEXT_TOKENS: Final = 32_768
"""Claude Code's own prompt is 12k to 25k tokens before the first word is typed."""


def banner(config: ClusterConfig, models: list[dict[str, Any]]) -> str:
    """The URL, a curl line to try, and the environment that points Claude Code here. `models` is `/v1/models`' data,
    empty where that is not to be had."""
    url = url_of(config)
    name = config.models[0].name
    body = json.dumps({"model": name, "max_tokens": 64, "messages": [{"role": "user", "content": "What is a twig?"}]})
    key = " -H 'x-api-key: $KVIST_KEY'" if config.needs_key else ""
    replicas = ", ".join(f"{model.name} × {model.least_replicas}" for model in config.models)
    lines = [
        "",
        f"Kvist is serving {replicas} at {url}",
        "",
        "Try it:",
        f"  curl -s {url}/v1/messages -H 'content-type: application/json'{key} -d '{body}'",
        "",
        *_claude_code_lines(config, url, models),
        "Stop with Ctrl-C.",
    ]
    return "\n".join(lines)


def _claude_code_lines(config: ClusterConfig, url: str, models: list[dict[str, Any]]) -> list[str]:
    if not models:
        return ["Keys are kept as digests: see docs/tenants.md for what to tell Claude Code.", ""]
    fitting = [model for model in models if int(model.get("max_model_len", 0)) >= CLAUDE_CODE_MIN_CONTEXT_TOKENS]
    if not fitting:
        return ["Claude Code needs a model with a context of 32k tokens or more; this one is smaller.", ""]
    token = "$KVIST_KEY" if config.needs_key else "kvist"
    return [
        "Claude Code:",
        f"  export ANTHROPIC_BASE_URL={url}",
        f"  export ANTHROPIC_AUTH_TOKEN={token}",
        f"  export ANTHROPIC_MODEL={fitting[0]['id']} ANTHROPIC_SMALL_FAST_MODEL={fitting[0]['id']}",
        "",
    ]
