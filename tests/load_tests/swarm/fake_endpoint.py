"""An endpoint in this process that does what it is told, well or badly, over real sockets."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

from aiohttp import web

from load_tests.swarm.endpoint import CUT_WAIT_S
from tests.load_tests.swarm.test_stream_reader import BLOCK, CHAT, END, START, text_delta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

Deed = Literal["answer", "trickle", "late", "hang", "hang_up", "break", "error", "refuse"]


class FakeEndpoint:
    """Each request gets the deed that `choose` says for its number. `hung_up` counts clients that left."""

    def __init__(self, choose: Callable[[int], Deed]) -> None:
        self._choose = choose
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.hung_up = 0

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "first"}, {"id": "second"}]})

    async def ask(self, request: web.Request) -> web.StreamResponse:
        deed = self._choose(len(self.bodies))
        self.bodies.append(await request.read())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        try:
            return await self._do(deed, request)
        except (ConnectionError, asyncio.CancelledError):
            self.hung_up += 1
            raise

    async def _do(self, deed: Deed, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        if deed == "refuse":
            return web.json_response({"type": "error"}, status=529)
        if deed == "hang_up":
            request.transport.abort()
            return web.Response()
        if deed in ("hang", "late"):
            await asyncio.sleep(600 if deed == "hang" else 3 * CUT_WAIT_S)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-kvist-replica": "r1"})
        await response.prepare(request)
        if request.path.endswith("completions"):
            await response.write(CHAT)
            return response
        await response.write(START + BLOCK + text_delta("a"))
        if deed == "break":
            request.transport.abort()
        if deed == "error":
            await response.write(b'event: error\ndata: {"type": "error", "error": {}}\n\n')
        while deed in ("trickle", "late"):
            await asyncio.sleep(0.01)
            await response.write(text_delta("b"))
        await response.write(END)
        return response


@asynccontextmanager
async def faking(choose: Callable[[int], Deed] = lambda _: "answer") -> AsyncIterator[tuple[str, FakeEndpoint]]:
    """Its URL and itself, until the block ends."""
    endpoint = FakeEndpoint(choose)
    app = web.Application(client_max_size=2**26)
    app.router.add_get("/v1/models", endpoint.models)
    app.router.add_post("/v1/messages", endpoint.ask)
    app.router.add_post("/v1/chat/completions", endpoint.ask)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", endpoint
    finally:
        await runner.cleanup()
