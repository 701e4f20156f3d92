"""Asks a running cluster how its replicas stand for a request, without sending it to any."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from cluster.environment import keys_from_environment
from router.errors import NoReplica

if TYPE_CHECKING:
    from cluster.captures import Captured

REQUEST_LIMIT_S: Final = 30.0
PREVIEW_PATH: Final = "/kvist/preview"
API_PATHS: Final = {
    "messages": "/v1/messages/count_tokens",
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
}


def fetch_standings(url: str, key: str, captured: Captured) -> list[dict[str, Any]]:
    """One entry per routable replica, best first. Raises `NoReplica` with what to do when the cluster does not tell."""
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    target = url.rstrip("/") + PREVIEW_PATH + API_PATHS[captured.api]
    request = urllib.request.Request(target, data=captured.body)  # noqa: S310 - the scheme is checked above
    request.add_header("content-type", "application/json")
    if key := key or next(iter(keys_from_environment()), ""):
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_LIMIT_S) as response:  # noqa: S310 - same
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as fault:
        raise NoReplica(f"{url}: {_reason(fault)}") from None
    except (OSError, ValueError, http.client.HTTPException) as fault:
        raise NoReplica(f"{url}: no cluster answers there ({fault}); check --url") from None
    replicas: list[dict[str, Any]] = answer["replicas"]
    return replicas


def _reason(fault: urllib.error.HTTPError) -> str:
    if fault.code == 401:
        return "it asks for a key: pass --api-key"
    try:
        return str(json.load(fault)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"it answered {fault.code}; check --url"
