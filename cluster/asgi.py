"""HTTP as the ingress speaks it: raw ASGI, since every layer between costs each request and each token."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from router.errors import RequestTooLarge
from router.limits import MAX_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_KEY = "kvist.request_id"


class ClientGoneError(Exception):
    """The client closed the connection."""


class RequestIds:
    """Middleware: every request gets an id, every response carries it, and how long it took if it does not say so
    itself. `new_id` gives what follows `req_`."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str]) -> None:
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Adds the header to whatever answers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[REQUEST_ID_KEY] = self._new_id()
        started_s = time.monotonic()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"request-id", f"req_{scope[REQUEST_ID_KEY]}".encode())]
                if not any(name == b"server-timing" for name, _ in headers):
                    timing = f"total;dur={(time.monotonic() - started_s) * 1e3:.3f}"
                    headers.append((b"server-timing", timing.encode()))
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, send_with_id)


async def read_body(receive: Receive) -> bytes:
    """The whole body, never more than its limit. Raises `RequestTooLarge` or `ClientGoneError`."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise RequestTooLarge(f"request body exceeds {MAX_BODY_BYTES} bytes")
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or until the client goes: then cancel it, wait for its clean-up, raise `ClientGoneError`.

    The body must have been read.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watcher.cancel()
        gone = not task.done()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
    if gone:
        raise ClientGoneError
    task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def headers_of(scope: Scope) -> dict[str, str]:
    """By lower-case name; of several with one name the first."""
    values: list[tuple[bytes, bytes]] = scope["headers"]
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(values)}


async def send_json(send: Send, body: dict[str, Any], *, status: int = 200, headers: dict[str, str]) -> None:
    """A whole response."""
    content = msgspec.json.encode(body)
    fields = {"content-type": "application/json", "content-length": str(len(content)), **headers}
    await send({"type": "http.response.start", "status": status, "headers": _encoded(fields)})
    await send({"type": "http.response.body", "body": content})


class EventStream:
    """A response of server-sent events. Nothing is sent before the first `write`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def start(self, headers: Mapping[str, str]) -> None:
        """Send the status and headers. Proxies must neither buffer nor compress what follows."""
        fields = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **headers,
        }
        self.started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": _encoded(fields)})

    async def write(self, events: bytes) -> None:
        """Events, in one write."""
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, events: bytes) -> None:
        """The last events, and the end of the response."""
        await self._send({"type": "http.response.body", "body": events, "more_body": False})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
