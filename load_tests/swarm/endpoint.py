"""The endpoint under load, over HTTP: one request out, one `Answer` back, whatever happens."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import aiohttp

from load_tests.swarm.bodies import PATHS
from load_tests.swarm.stream_reader import StreamReader
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from load_tests.client import Api
    from load_tests.swarm.ledger import Outcome

CUT_WAIT_S: Final = 0.1
"""When a request is cut before its first token, it has waited this long."""
LOOK_LIMIT_S: Final = 20.0
IDLE_CONNECTION_S: Final = 4.0
"""Common servers hang up after five: a request must not meet that."""

Ending = Literal["completed", "cancelled", "refused", "failed", "timed_out"]


class Call(NamedTuple):
    """What to send. `cut_after` as `Turn` has it; `limit_s` is how long it may take."""

    body: bytes
    headers: Mapping[str, str]
    cut_after: int | None
    limit_s: float


class Answer(NamedTuple):
    """What came back. Times are the endpoint's clock."""

    outcome: Outcome
    error: str | None
    status: int | None
    replica: str | None
    sent_s: float
    ended_s: float
    stream: StreamReader


class Endpoint:
    """A client of one endpoint. Connections are as many as requests at once: the client never makes one wait.

    Use it in an `async with`. `key` goes out as both APIs' clients send it, and is shown nowhere."""

    def __init__(
        self, url: str, *, api: Api, key: str, replica_header: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url.rstrip("/")
        self.api = api
        self._key = key
        self._replica_header = replica_header
        self.clock = clock
        self._http: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<Endpoint {self._url} {self.api}>"

    async def __aenter__(self) -> Endpoint:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=self._fixed_headers(),
            read_bufsize=2**18,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._http is not None
        await self._http.close()

    async def first_model(self) -> str:
        """The first model that `/v1/models` lists. Raises `InvalidRequest` when none can be found so."""
        assert self._http is not None
        try:
            async with asyncio.timeout(LOOK_LIMIT_S), self._http.get(f"{self._url}/v1/models") as response:
                listed = (await response.json(content_type=None))["data"]
                return str(listed[0]["id"])
        except (aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError) as fault:
            raise InvalidRequest(f"{self._url}/v1/models lists no model ({fault!r}): pass --model") from fault

    async def ask(self, call: Call) -> Answer:
        """Send and read to the end, the cut, or the fault. Raises nothing but cancellation."""
        sent_s = self.clock()
        stream = StreamReader(self.api)
        told = _Told(self._replica_header)
        ending, error = await self._ended(call, stream, told)
        return Answer(ending, error, told.status, told.replica, sent_s, self.clock(), stream)

    async def _ended(self, call: Call, stream: StreamReader, told: _Told) -> tuple[Ending, str | None]:
        try:
            async with asyncio.timeout(call.limit_s):
                return await self._exchange(call, stream, told)
        except TimeoutError:
            return "timed_out", "timeout"
        except aiohttp.ClientConnectorError:
            return "failed", "connect"
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionError):
            return "failed", "truncated" if told.status else "disconnected"
        except (aiohttp.ClientError, OSError, ValueError):
            return "failed", "connection"

    async def _exchange(self, call: Call, stream: StreamReader, told: _Told) -> tuple[Ending, str | None]:
        assert self._http is not None
        cut_wait_s = CUT_WAIT_S if call.cut_after == 0 else None
        try:
            async with asyncio.timeout(cut_wait_s):
                url = f"{self._url}{PATHS[self.api]}"
                async with self._http.post(url, data=call.body, headers=call.headers) as response:
                    told.read(response)
                    if response.status != 200:
                        return "refused", f"http_{response.status}"
                    return await self._read(response, call, stream)
        except TimeoutError:
            if cut_wait_s is None:
                raise
            return ("completed" if stream.is_complete else "cancelled"), None

    async def _read(
        self, response: aiohttp.ClientResponse, call: Call, stream: StreamReader
    ) -> tuple[Ending, str | None]:
        async for data in response.content.iter_any():
            stream.feed(data, self.clock())
            if stream.error is not None:
                return "failed", stream.error
            if call.cut_after and stream.pieces >= call.cut_after and not stream.is_complete:
                response.close()
                return "cancelled", None
        stream.finish()
        return ("completed", None) if stream.error is None else ("failed", stream.error)

    def _fixed_headers(self) -> dict[str, str]:
        fields = {"content-type": "application/json"}
        if self._key:
            fields["authorization"] = f"Bearer {self._key}"
        if self.api == "messages":
            fields |= {"anthropic-version": "2023-06-01"} | ({"x-api-key": self._key} if self._key else {})
        return fields


class _Told:
    """What the head of a response says; it outlives a failure."""

    def __init__(self, replica_header: str) -> None:
        self._replica_header = replica_header
        self.status: int | None = None
        self.replica: str | None = None

    def read(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.replica = response.headers.get(self._replica_header)
