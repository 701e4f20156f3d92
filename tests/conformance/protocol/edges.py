"""What clients ask besides answers: probes, keys, models, request ids, and errors in the protocol's own shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.protocol.bodies import messages, user
from tests.conformance.protocol.probe import KEY, MESSAGES, Behaviour, Verdict

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Reply, Server, Status

LARGE_BYTES = 32 * 10**6


def shaped(reply: Reply, status: int, kind: str) -> Verdict:
    """An error is as Anthropic's clients expect it: status, shape and type."""
    body = reply.body
    error = body.get("error")
    if reply.status != status:
        return Verdict("no", reply.words)
    if body.get("type") != "error" or not isinstance(error, dict):
        return Verdict("partly", f"{status} in another shape: {reply.text[:60]!r}")
    if error.get("type") != kind:
        return Verdict("partly", f"{status} of type {error.get('type')}")
    return Verdict("yes", f"{status} {kind}")


async def malformed_json(server: Server) -> Verdict:
    reply = await server.send("POST", MESSAGES, data=b'{"model": "tiny", "messages": [')
    return shaped(reply, 400, "invalid_request_error")


async def unknown_model(server: Server) -> Verdict:
    return shaped(await server.post(MESSAGES, messages(model="nobody-serves-this")), 404, "not_found_error")


async def prompt_too_long(server: Server) -> Verdict:
    """Claude Code reads the two numbers and compacts; any other text ends its work."""
    reply = await server.post(MESSAGES, messages(user("red green blue " * 6000)))
    verdict = shaped(reply, 400, "invalid_request_error")
    said = "prompt is too long: " in reply.text and " tokens > " in reply.text and " maximum" in reply.text
    return Verdict(verdict.status if said else "no", reply.words)


async def long_answer_is_cut(server: Server) -> Verdict:
    """Clients ask for 32,000 to 128,000 tokens whatever the window is; here the stop string ends it soon."""
    stops = ["e", "a", "o", "t"]
    reply = await server.post(MESSAGES, messages(max_tokens=128_000, stop_sequences=stops))
    return Verdict("yes" if reply.status == 200 else "no", reply.words if reply.status != 200 else "200")


async def no_such_path(server: Server) -> Verdict:
    """A path that does not exist, and a method that a path does not have."""
    path = shaped(await server.post("/v1/messages/batches", {}), 404, "not_found_error")
    method = shaped(await server.send("GET", MESSAGES), 405, "invalid_request_error")
    found = {"path": path, "method": method}
    said = "; ".join(f"{name}: {verdict.detail}" for name, verdict in found.items() if verdict.status != "yes")
    kinds = {verdict.status for verdict in found.values()}
    return Verdict(kinds.pop() if len(kinds) == 1 else "partly", said)


async def large_body(server: Server) -> Verdict:
    """What the protocol allows: 32 MB, most of which is usually images."""
    body = messages(metadata={"user_id": "a" * (LARGE_BYTES - 1000)})
    reply = await server.post(MESSAGES, body)
    return Verdict("yes" if reply.status == 200 else "no", "" if reply.status == 200 else reply.words)


async def request_id(server: Server) -> Verdict:
    """On answers and errors, and in the error's body."""
    good, bad = await server.post(MESSAGES, messages()), await server.post(MESSAGES, messages(model="nobody"))
    found = {
        "header of an answer": "request-id" in good.headers,
        "header of an error": "request-id" in bad.headers,
        "`request_id` in the error": bool(bad.body.get("request_id")),
    }
    missing = ", ".join(name for name, there in found.items() if not there)
    status: Status = "partly" if any(found.values()) else "no"
    return Verdict(status if missing else "yes", f"missing: {missing}" if missing else "")


async def probes(server: Server) -> Verdict:
    asked = [("HEAD", "/"), ("GET", "/"), ("HEAD", "/api/hello"), ("GET", "/api/hello")]
    replies = {f"{method} {path}": (await server.send(method, path, headers={})).status for method, path in asked}
    bad = ", ".join(f"{name} {status}" for name, status in replies.items() if status != 200)
    return Verdict("no" if bad else "yes", bad)


async def keys(server: Server) -> Verdict:
    """As `x-api-key` and as Bearer; another key is refused."""
    mine = await server.post(MESSAGES, messages(), headers={"x-api-key": KEY})
    bearer = await server.post(MESSAGES, messages())
    other = await server.post(MESSAGES, messages(), headers={"x-api-key": "another"})
    if mine.status != 200 or bearer.status != 200:
        return Verdict("no", f"x-api-key {mine.status}, Bearer {bearer.status}")
    if other.status == 200:
        return Verdict("partly", "any key opens")
    return shaped(other, 401, "authentication_error")


async def model_list(server: Server) -> Verdict:
    """The fields that Anthropic's SDKs read, of the list and of one model."""
    listed = (await server.send("GET", "/v1/models")).body
    one = (await server.send("GET", f"/v1/models/{server.model}")).body
    wanted = {"id", "type", "display_name", "created_at"}
    entry = next(iter(listed.get("data") or [{}]))
    missing = sorted((wanted - entry.keys()) | ({"has_more", "first_id"} - listed.keys()))
    missing += sorted(f"{name} of one model" for name in wanted - one.keys())
    return Verdict("no" if missing else "yes", f"missing: {', '.join(missing)}" if missing else "")


BEHAVIOURS = (
    Behaviour("malformed-json", "Malformed JSON is a 400 in Anthropic's shape", malformed_json),
    Behaviour("unknown-model", "An unknown model is a 404 in Anthropic's shape", unknown_model),
    Behaviour("too-long", "Overflow reads `prompt is too long: N tokens > M maximum`", prompt_too_long, "engine"),
    Behaviour("long-answer", "`max_tokens` beyond the window is cut to what is left", long_answer_is_cut, "engine"),
    Behaviour("no-such-path", "Unknown paths and methods are errors in Anthropic's shape", no_such_path),
    Behaviour("large-body", "A body of 32 MB is read", large_body, "engine"),
    Behaviour("request-id", "`request-id` on every response, `request_id` in errors", request_id),
    Behaviour("probes", "`HEAD` and `GET` of `/` and `/api/hello` answer 200", probes),
    Behaviour("keys", "A key opens as `x-api-key` and as Bearer, another gets 401", keys),
    Behaviour("models", "`/v1/models` in Anthropic's shape", model_list),
)
