"""Requests drawn from the API's own description, as it wants them and broken: no 500, every refusal in its protocol's
form, and answers as described."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cluster.api.openapi import document
from cluster.ingress import ENDPOINTS, build_app
from cluster.tenants import Tenants
from tests.cluster.support import EngineBackend, ScriptedEngine

if TYPE_CHECKING:
    from fastapi import FastAPI

    from cluster.models.served import ServedModel

PATHS = [path for path, _, _ in ENDPOINTS]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
URL = "http://kvist"
BOUNDED = settings(
    max_examples=15,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def description() -> dict[str, Any]:
    """The document, the one model that is served here for the name of any."""
    found = document()
    for schema in found["components"]["schemas"].values():
        if "model" in schema.get("properties", ()) and "id" not in schema["properties"]:
            schema["properties"] = {**schema["properties"], "model": {"enum": ["tiny"]}}
    return found


@pytest.fixture
def app(served: ServedModel) -> FastAPI:
    return build_app(models={"tiny": served}, backend=EngineBackend(ScriptedEngine()), tenants=Tenants())


def answer_of(app: FastAPI, request: dict[str, Any]) -> httpx.Response:
    """What the app says, in this process."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.request(**request)

    return asyncio.run(ask())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("mode", "expected"), [(GenerationMode.POSITIVE, 200), (GenerationMode.NEGATIVE, 400)])
def test_no_request_brings_the_ingress_down(app: FastAPI, path: str, mode: GenerationMode, expected: int) -> None:
    """No 500, no status and no answer that is not described. Events of streams are looked at, too."""
    operation = schemathesis.openapi.from_dict(description())[path]["POST"]
    statuses: set[int] = set()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(BOUNDED)
    def ask(case: Any) -> None:
        request = case.as_transport_kwargs(base_url=URL)
        request.pop("cookies", None)
        answer = answer_of(app, request)
        statuses.add(answer.status_code)
        case.validate_response(answer, checks=CHECKS)

    ask()
    assert expected in statuses


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/{name}", "/healthz"])
def test_what_can_be_got_is_as_described(app: FastAPI, path: str) -> None:
    """Also the refusal of a name that no model has."""
    operation = schemathesis.openapi.from_dict(description())[path]["GET"]
    names = ["tiny", "other"] if "{" in path else [""]
    for name in names:
        case = operation.Case(path_parameters={"name": name} if name else {})
        answer = answer_of(app, {"method": "GET", "url": URL + path.format(name=name)})
        case.validate_response(answer, checks=CHECKS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b"\xff", b'{"model": "tiny"}', b'{"chat_template": ""}'])
def test_refusals_have_the_form_of_their_protocol(app: FastAPI, path: str, broken: bytes) -> None:
    """Not only for bodies that are JSON."""
    answer = answer_of(app, {"method": "POST", "url": URL + path, "content": broken})
    assert answer.status_code == 400
    assert set(answer.json()) == ({"type", "error", "request_id"} if path.startswith("/v1/messages") else {"error"})
    operation = schemathesis.openapi.from_dict(description())[path]["POST"]
    operation.Case().validate_response(answer, checks=CHECKS)


def test_the_description_is_served_and_says_what_there_is(app: FastAPI) -> None:
    """Every endpoint that takes requests, and no other."""
    served = answer_of(app, {"method": "GET", "url": f"{URL}/openapi.json"}).json()
    assert served == document()
    assert {path for path, kinds in served["paths"].items() if "post" in kinds} == set(PATHS)
    gets = [path for path, kinds in served["paths"].items() if "get" in kinds]
    routes = {getattr(route, "path", "").replace("{name:path}", "{name}") for route in app.router.routes}
    assert routes.issuperset(gets)


def test_the_description_is_a_valid_document() -> None:
    """Every reference leads somewhere, every named form is used, every schema is one."""
    found = document()
    text = json.dumps(found)
    for name, schema in found["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert f'"#/components/schemas/{name}"' in text, name
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names == found["components"]["schemas"].keys()
