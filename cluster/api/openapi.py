"""What the HTTP side offers, as an OpenAPI 3.1 document.

It describes what clients normally send. More is read than it says (blocks and tools of further types), and unknown
fields are ignored everywhere.
"""

from __future__ import annotations

from typing import Any, Final

from cluster.api import openapi_chat, openapi_messages, openapi_responses
from cluster.api.openapi_forms import BOOLEAN, Schema, array, integer, maybe, one_of, record, ref, text

VERSION: Final = "1"
_WHOLE_OR_STREAMED: Final = "The answer, whole or (with `stream`) as server-sent events."
_MODEL: Final = {
    "id": text(),
    "object": {"const": "model"},
    "type": {"const": "model"},
    "created": integer(),
    "created_at": text(format="date-time"),
    "owned_by": text(),
    "display_name": text(),
    "max_model_len": integer(1),
    "max_input_tokens": integer(0),
    "max_tokens": integer(0),
}
_SHARED: Final[dict[str, Schema]] = {
    "Model": record(_MODEL, required=tuple(_MODEL), description="What both vendors' clients read of a model."),
    "Models": record(
        {
            "object": {"const": "list"},
            "data": array(ref("Model")),
            "has_more": BOOLEAN,
            "first_id": maybe(text()),
            "last_id": maybe(text()),
        },
        required=("object", "data", "has_more", "first_id", "last_id"),
    ),
    "Event": record({"event": text(), "data": text()}, required=("data",), description="Each event of a stream."),
    "Health": record(
        {"status": one_of("ok", "unavailable"), "warm": BOOLEAN, "detail": text()},
        required=("status", "warm", "detail"),
    ),
}
_FAULTS: Final = {
    "400": "The request cannot be served as it was sent; the message says why.",
    "401": "No key, or an unknown one.",
    "404": "No such model, or what the request refers to is not there any more.",
    "413": "More bytes or more text than is looked at.",
    "500": "A replica failed, or Kvist did.",
}


def document() -> dict[str, Any]:
    """The whole document, plain data, built anew."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kvist", "version": VERSION, "summary": "Serves coding agents from warm KV caches."},
        "security": [{}, {"api_key": []}, {"bearer": []}],
        "paths": _paths(),
        "components": {
            "schemas": _SHARED | openapi_messages.SCHEMAS | openapi_chat.SCHEMAS | openapi_responses.SCHEMAS,
            "securitySchemes": {
                "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _paths() -> dict[str, Any]:
    messages, openai = "MessagesError", "OpenAIError"
    name = {"name": "name", "in": "path", "required": True, "schema": text(minLength=1)}
    return {
        "/v1/messages": _post("MessagesRequest", "Message", fault=messages, streamed=True),
        "/v1/messages/count_tokens": _post("CountRequest", "Count", fault=messages),
        "/v1/chat/completions": _post("ChatRequest", "ChatCompletion", fault=openai, streamed=True),
        "/v1/completions": _post("CompletionRequest", "Completion", fault=openai, streamed=True),
        "/v1/responses": _post("ResponseRequest", "Response", fault=openai, streamed=True),
        "/v1/responses/input_tokens": _post("ResponseRequest", "ResponseCount", fault=openai),
        "/v1/models": _get("Models"),
        "/v1/models/{name}": {"parameters": [name], **_get("Model")},
        "/healthz": {
            "get": {
                "summary": "Whether every model can be served.",
                "security": [{}],
                "responses": {"200": _json("Served.", "Health"), "503": _json("Not served now.", "Health")},
            }
        },
    }


def _post(request: str, answer: str, *, fault: str, streamed: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": ref(answer)}}
    if streamed:
        content["text/event-stream"] = {"schema": ref("Event")}
    full = "529" if fault == "MessagesError" else "503"
    faults = _FAULTS | {full: "No replica can take the request now; `retry-after` says when to come back."}
    return {
        "post": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": ref(request)}}},
            "responses": {
                "200": {"description": _WHOLE_OR_STREAMED if streamed else "The answer.", "content": content},
                **{status: _json(words, fault) for status, words in faults.items()},
            },
        }
    }


def _get(answer: str) -> dict[str, Any]:
    """Clients of either vendor ask here; those that name an `anthropic-version` get that vendor's errors."""
    fault = {"anyOf": [ref("OpenAIError"), ref("MessagesError")]}
    faults = {
        status: {"description": _FAULTS[status], "content": {"application/json": {"schema": fault}}}
        for status in ("401", "404")
    }
    return {"get": {"responses": {"200": _json("Served.", answer), **faults}}}


def _json(description: str, schema: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": ref(schema)}}}
