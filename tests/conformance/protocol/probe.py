"""A server under test, asked over HTTP only, and what a behaviour says of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

KEY = "conformance-key"
VERSION_HEADER = {"anthropic-version": "2023-06-01"}
BEARER = {"authorization": f"Bearer {KEY}"}
TIMEOUT_S = 60.0
MESSAGES, COUNT, CHAT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/responses"
CONTEXT_TOKENS = 8192  # of every server under test
BLOCK_TOKENS = 32  # the largest cache block among them
Json = dict[str, Any]
Status = Literal["yes", "partly", "no", "source"]
Need = Literal["", "engine", "calls", "script"]


class Verdict(NamedTuple):
    """Whether the behaviour was there, and what was measured, in a few words."""

    status: Status
    detail: str = ""


class Behaviour(NamedTuple):
    """One row. `needs` names what must be behind the HTTP: an `engine` that reads the prompt and answers, one that
    obeys `tool_choice` (`calls`), or one whose answers are scripted (`script`)."""

    name: str
    title: str
    run: Callable[[Server], Awaitable[Verdict]]
    needs: Need = ""


class Reply(NamedTuple):
    """A whole HTTP response."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def body(self) -> Json:
        """The JSON object, or an empty one for anything else."""
        try:
            value = json.loads(self.text)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def words(self) -> str:
        """Status and message in one short line."""
        error = self.body.get("error", self.body)
        said = error.get("message", "") if isinstance(error, dict) else error
        line = " ".join(str(said or self.text).split())
        return f"{self.status} {line[:90]}".strip()


class Refused(Exception):
    """A request that had to be answered was not."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.words)
        self.reply = reply


class Server:
    """One running server. Requests carry the key as Bearer unless headers say otherwise."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session = session
        self._url = url
        self.model = model
        self.refusals: list[Reply] = []  # every answer that was no success, in order

    async def send(
        self, method: str, path: str, *, data: bytes | None = None, headers: Mapping[str, str] = BEARER
    ) -> Reply:
        """One request, its whole response; a closed connection counts as status 0."""
        every = {"content-type": "application/json", **VERSION_HEADER, **headers}
        try:
            async with self._session.request(method, self._url + path, data=data, headers=every) as response:
                reply = Reply(response.status, response.headers, await response.text(errors="replace"))
        except aiohttp.ClientError as error:
            reply = Reply(0, {}, f"connection closed: {type(error).__name__}")
        except TimeoutError:
            reply = Reply(0, {}, f"no answer in {TIMEOUT_S:.0f} s")
        if reply.status != 200:
            self.refusals.append(reply)
        return reply

    async def post(self, path: str, body: Json, *, headers: Mapping[str, str] = BEARER) -> Reply:
        """The body as JSON, with this server's model unless it names one."""
        return await self.send("POST", path, data=json.dumps({"model": self.model} | body).encode(), headers=headers)

    async def answer(self, path: str, body: Json) -> Json:
        """Raises `Refused` for anything but 200."""
        reply = await self.post(path, body)
        if reply.status != 200:
            raise Refused(reply)
        return reply.body

    async def events(self, path: str, body: Json) -> list[Json]:
        """The stream's `data` objects in their order; one that is no JSON becomes `{"type": <its text>}`."""
        reply = await self.post(path, body | {"stream": True})
        if reply.status != 200:
            raise Refused(reply)
        return events_of(reply.text)

    async def reads(self, path: str, body: Json) -> list[str]:
        """The stream's text as it arrives, a string per read. What is written at once is mostly read at once."""
        data = json.dumps({"model": self.model} | body | {"stream": True}).encode()
        headers = {"content-type": "application/json", **VERSION_HEADER, **BEARER}
        async with self._session.post(self._url + path, data=data, headers=headers) as response:
            parts = [part.decode(errors="replace") async for part in response.content.iter_any()]
        if response.status != 200:
            self.refusals.append(refusal := Reply(response.status, response.headers, "".join(parts)))
            raise Refused(refusal)
        return parts

    async def tokens(self, path: str, body: Json) -> int:
        """How many prompt tokens the server says it read, cached or not."""
        return prompt_of((await self.answer(path, body))["usage"])


def events_of(text: str) -> list[Json]:
    """The `data` lines of a stream."""
    lines = (line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:"))
    return [_event(line) for line in lines]


def _event(line: str) -> Json:
    try:
        value = json.loads(line)
    except ValueError:
        return {"type": line}
    return value if isinstance(value, dict) else {"type": line}


def first(events: list[Json], kind: str) -> Json:
    """The first event of a kind. Raises KeyError for a stream without one."""
    found = [event for event in events if event["type"] == kind]
    if not found:
        raise KeyError(kind)
    return found[0]


def prompt_of(usage: Json) -> int:
    """Prompt tokens of a usage object of any of the protocols."""
    if "prompt_tokens" in usage:
        return int(usage["prompt_tokens"])
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(int(usage.get(part) or 0) for part in parts)


def cached_of(usage: Json) -> int:
    """Prompt tokens that came from the cache."""
    return int(usage.get("cache_read_input_tokens") or 0)
