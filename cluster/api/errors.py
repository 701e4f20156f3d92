"""One table: what an error is called in each protocol, and its HTTP status."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from router.errors import (
    ClientError,
    CutShort,
    Forbidden,
    InvalidRequest,
    KvistError,
    NoReplica,
    PromptTooLong,
    Quarantined,
    RateLimited,
    ReplicaError,
    RequestTooLarge,
    Unauthorized,
    UnknownModel,
    UnknownResponse,
)
from router.limits import QUARANTINE_S


class Fault(NamedTuple):
    """An error as both protocols show it."""

    status: int
    messages_type: str
    chat_status: int
    chat_type: str
    chat_code: str | None
    text: str | None = None  # None: the error's own text, which is safe for clients
    headers: tuple[tuple[str, str], ...] = ()  # when to come back, and whether at all


RETRY_AFTER_S: Final = 1
SOON: Final = (("retry-after", str(RETRY_AFTER_S)),)
MUCH_LATER: Final = (("retry-after", f"{QUARANTINE_S:.0f}"), ("x-should-retry", "false"))
_FULL: Final = "no replica can take the request now, try again"
_CUT: Final = "the replica failed, and no other can go on with this answer exactly as it began, try again"
_TAKEN_DOWN: Final = "replicas failed over this request, it is refused for a while"
INTERNAL: Final = Fault(500, "api_error", 500, "server_error", None, "internal error")
TABLE: Final[dict[type[KvistError], Fault]] = {
    PromptTooLong: Fault(400, "invalid_request_error", 400, "invalid_request_error", "context_length_exceeded"),
    InvalidRequest: Fault(400, "invalid_request_error", 400, "invalid_request_error", None),
    Unauthorized: Fault(401, "authentication_error", 401, "invalid_request_error", "invalid_api_key"),
    Forbidden: Fault(403, "permission_error", 403, "invalid_request_error", "permission_denied"),
    RateLimited: Fault(429, "rate_limit_error", 429, "rate_limit_error", "rate_limit_exceeded"),
    UnknownResponse: Fault(400, "invalid_request_error", 400, "invalid_request_error", "previous_response_not_found"),
    UnknownModel: Fault(404, "not_found_error", 404, "invalid_request_error", "model_not_found"),
    RequestTooLarge: Fault(413, "request_too_large", 413, "invalid_request_error", "request_too_large"),
    NoReplica: Fault(
        529,
        "overloaded_error",
        503,
        "server_error",
        "overloaded",
        "no replica can take the request now, try again",
        SOON,
    ),
    CutShort: Fault(500, "api_error", 500, "server_error", "cut_short", _CUT, SOON),
    Quarantined: Fault(500, "api_error", 500, "server_error", "quarantined", _TAKEN_DOWN, MUCH_LATER),
    ReplicaError: Fault(500, "api_error", 500, "server_error", None, "the replica failed, try again", SOON),
    ClientError: Fault(400, "invalid_request_error", 400, "invalid_request_error", None),
}
# What the HTTP framework itself refuses, by status.
HTTP_FAULTS: Final = {
    404: Fault(404, "not_found_error", 404, "invalid_request_error", "not_found", "no such path"),
    405: Fault(405, "invalid_request_error", 405, "invalid_request_error", None, "method not allowed"),
}


def fault_of(error: BaseException) -> Fault:
    """The most specific row; anything not raised on purpose is internal and keeps its text to itself."""
    return next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), INTERNAL)


def headers_of(error: BaseException) -> dict[str, str]:
    """What is not the client's fault, and a tenant's used-up share, say when to come back."""
    if isinstance(error, RateLimited):
        return {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    return dict(fault_of(error).headers)


def messages_error(fault: Fault, text: str, request_id: str) -> dict[str, Any]:
    """The body of an error, and the data of an `error` event, in Anthropic's shape."""
    detail = {"type": fault.messages_type, "message": fault.text or text}
    return {"type": "error", "error": detail, "request_id": request_id}


def chat_error(fault: Fault, text: str) -> dict[str, Any]:
    """The same in OpenAI's shape."""
    return {
        "error": {"message": fault.text or text, "type": fault.chat_type, "param": None, "code": fault.chat_code},
    }
