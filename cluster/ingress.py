"""The HTTP side of Kvist: one FastAPI app over a `Backend`."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route

from cluster.api import errors
from cluster.api.chat_reply import CHAT
from cluster.api.completions_reply import COMPLETIONS
from cluster.api.messages_reply import COUNT, MESSAGES
from cluster.api.openapi import document
from cluster.api.response_memory import ResponseMemory
from cluster.api.responses_reply import COUNT_INPUT, RESPONSES
from cluster.asgi import REQUEST_ID_KEY, RequestIds
from cluster.endpoint import CountInput, CountTokens, Generate, Preview
from cluster.exchange import PACING, Pacing, Services
from cluster.model_names import ModelNames
from router.errors import ClientError, Forbidden

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cluster.api.dialect import Dialect
    from cluster.api.outcomes import Report
    from cluster.backend import Backend
    from cluster.endpoint import Endpoint
    from cluster.models.served import ServedModel
    from cluster.tenants import Tenant, Tenants

ENDPOINTS: Final[tuple[tuple[str, type[Endpoint], Dialect], ...]] = (
    ("/v1/messages", Generate, MESSAGES),
    ("/v1/messages/count_tokens", CountTokens, COUNT),
    ("/v1/chat/completions", Generate, CHAT),
    ("/v1/completions", Generate, COMPLETIONS),
    ("/v1/responses", Generate, RESPONSES),
    ("/v1/responses/input_tokens", CountInput, COUNT_INPUT),
)
PREVIEW_PATH: Final = "/kvist/preview"  # before the path of an endpoint: where its request would go
_READ: Final = ("GET", "HEAD")


def build_app(
    *,
    models: Mapping[str, ServedModel],
    aliases: Mapping[str, str] | None = None,
    backend: Backend,
    tenants: Tenants,
    on_outcome: Callable[[Report], None] = lambda _report: None,
    pacing: Pacing = PACING,
) -> FastAPI:
    """The app that serves `models` by name, and under `aliases` (pattern to name). `on_outcome` is called once per
    request, at its end."""
    names = ModelNames(models, aliases or {})
    services = Services(
        models=names,
        backend=backend,
        tenants=tenants,
        responses=ResponseMemory(),
        on_outcome=on_outcome,
        clock=time.monotonic,
        pacing=pacing,
    )
    app = FastAPI(title="Kvist", openapi_url=None, redirect_slashes=False)
    for path, endpoint, dialect in ENDPOINTS:
        app.router.routes.append(Route(path, endpoint(services, dialect), methods=["POST"]))
        app.router.routes.append(Route(PREVIEW_PATH + path, Preview(services, dialect), methods=["POST"]))
    _add_models(app, names, tenants)
    _add_probes(app, backend, tenants)
    app.add_exception_handler(ClientError, _client_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_middleware(RequestIds, new_id=lambda: secrets.token_hex(12))
    return app


def _add_models(app: FastAPI, names: ModelNames, tenants: Tenants) -> None:
    created = datetime.now(UTC).replace(microsecond=0)

    @app.api_route("/v1/models", methods=[*_READ])
    async def list_models(request: Request) -> JSONResponse:
        _authenticate(tenants, request)
        models = names.listed()
        entries = [_model_entry(name, model, created) for name, model in models.items()]
        ends = {"first_id": next(iter(models), None), "last_id": next(reversed(list(models)), None)}
        return JSONResponse({"object": "list", "data": entries, "has_more": False, **ends})

    @app.api_route("/v1/models/{name:path}", methods=[*_READ])
    async def get_model(request: Request, name: str) -> JSONResponse:
        _authenticate(tenants, request)
        return JSONResponse(_model_entry(name, names.find(name), created))


def _add_probes(app: FastAPI, backend: Backend, tenants: Tenants) -> None:
    @app.api_route("/", methods=[*_READ])
    @app.api_route("/api/hello", methods=[*_READ])
    async def hello() -> Response:
        return Response()

    @app.api_route("/openapi.json", methods=[*_READ])
    async def description() -> JSONResponse:
        return JSONResponse(document())

    @app.api_route("/healthz", methods=[*_READ])
    async def healthz() -> JSONResponse:
        health = backend.health()
        body = {"status": "ok" if health.ready else "unavailable", "warm": health.warm, "detail": health.detail}
        return JSONResponse(body, status_code=200 if health.ready else 503)

    @app.api_route("/kvist/status", methods=[*_READ])
    async def status(request: Request) -> JSONResponse:
        if not _authenticate(tenants, request).admin:
            raise Forbidden("this key may not see all tenants' numbers: its tenant needs `admin: true`")
        return JSONResponse(msgspec.to_builtins(backend.health()))


def _model_entry(name: str, model: ServedModel, created: datetime) -> dict[str, Any]:
    """Both protocols' fields in one object: clients of either ignore the other's."""
    return {
        "id": name,
        "object": "model",
        "created": int(created.timestamp()),
        "owned_by": "kvist",
        "type": "model",
        "display_name": name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "max_model_len": model.max_model_len,
        "max_input_tokens": model.max_model_len - 1,
        "max_tokens": model.max_model_len - 1,
    }


def _authenticate(tenants: Tenants, request: Request) -> Tenant:
    headers = request.headers
    return tenants.authenticate(api_key=headers.get("x-api-key", ""), authorization=headers.get("authorization", ""))


def _client_error(request: Request, error: Exception) -> Response:
    return _error_response(request, errors.fault_of(error), str(error))


def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    response = _error_response(request, errors.HTTP_FAULTS.get(status, errors.INTERNAL), "")
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response


def _error_response(request: Request, fault: errors.Fault, text: str) -> JSONResponse:
    """In the shape of whoever asks: Anthropic's clients name their protocol's version, OpenAI's do not."""
    if "anthropic-version" in request.headers or request.url.path.startswith("/v1/messages"):
        request_id = f"req_{request.scope[REQUEST_ID_KEY]}"
        return JSONResponse(errors.messages_error(fault, text, request_id), status_code=fault.status)
    return JSONResponse(errors.chat_error(fault, text), status_code=fault.chat_status)
