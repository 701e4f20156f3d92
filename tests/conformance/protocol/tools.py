"""Tools: listed, hidden, called, and called badly."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.conformance.protocol.bodies import (
    ASK_BROKEN,
    ASK_CALL,
    FUNCTION,
    INSTRUCTIONS,
    ONLY_SENSOR,
    OTHER_TOOL,
    QUESTION,
    TOOL,
    messages,
    responses,
    tool_turns,
    user,
)
from tests.conformance.protocol.probe import MESSAGES, RESPONSES, Behaviour, Verdict

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Json, Server

DEFERRED: Json = OTHER_TOOL | {"defer_loading": True}
SEARCH: Json = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
NAMESPACE: Json = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [FUNCTION | {"name": "spawn_agent"}],
}


def _forced(*, max_tokens: int) -> Json:
    """A body whose answer must be one long call. Thinking is off: some servers follow `tool_choice` only after it."""
    tool = TOOL | {"strict": True, "input_schema": ONLY_SENSOR}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    return messages(
        user(ASK_CALL), tools=[tool], tool_choice=choice, max_tokens=max_tokens, thinking={"type": "disabled"}
    )


async def deferred(server: Server) -> Verdict:
    """So that one that is loaded later does not move the tools behind it."""
    counts = [
        await server.tokens(MESSAGES, messages(system=INSTRUCTIONS, tools=tools))
        for tools in ([TOOL], [DEFERRED, TOOL])
    ]
    return Verdict("yes" if counts[0] == counts[1] else "no", f"{counts[1]} tokens with, {counts[0]} without")


async def reference(server: Server) -> Verdict:
    """The tool that a search found is described in its result."""
    bodies = [
        messages(*tool_turns(content), tools=[TOOL, DEFERRED])
        for content in ([], [{"type": "tool_reference", "tool_name": DEFERRED["name"]}])
    ]
    counts = [await server.tokens(MESSAGES, body) for body in bodies]
    grown = counts[1] - counts[0]
    return Verdict("yes" if grown >= len(str(DEFERRED["description"]).split()) else "no", f"{grown} tokens longer")


async def server_tool(server: Server) -> Verdict:
    """Beside an ordinary tool."""
    reply = await server.post(MESSAGES, messages(tools=[SEARCH, TOOL]))
    return Verdict("yes" if reply.status == 200 else "no", "" if reply.status == 200 else reply.words)


async def cut_call(server: Server) -> Verdict:
    """Its arguments are no JSON yet."""
    reply = await server.post(MESSAGES, _forced(max_tokens=24))
    if reply.status != 200:
        return Verdict("no", reply.words)
    reason, kinds = reply.body["stop_reason"], [block["type"] for block in reply.body["content"]]
    right = reason == "max_tokens" and bool(kinds)
    return Verdict("yes" if right else "partly", f"stop_reason {reason}, content {kinds}")


async def broken_call(server: Server) -> Verdict:
    """Nothing is lost: it becomes text."""
    body = messages(user(ASK_BROKEN), tools=[TOOL], max_tokens=200)
    reply = await server.post(MESSAGES, body)
    if reply.status != 200:
        return Verdict("no", reply.words)
    kept = any("look_up" in json.dumps(block) for block in reply.body["content"])
    return Verdict("yes" if kept else "no", f"content {[block['type'] for block in reply.body['content']]}")


async def incremental(server: Server) -> Verdict:
    """Its pieces arrive one after the other, not all at the end."""
    reads = await server.reads(MESSAGES, _forced(max_tokens=400))
    pieces = sum("input_json_delta" in read for read in reads)
    return Verdict("yes" if pieces >= 3 else "no", f"in {pieces} reads of {len(reads)}")


async def in_responses(server: Server) -> Verdict:
    """As Codex sends them: calls and outputs in `input`, beside kinds of tools that only it knows."""
    call = {"type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": '{"sensor": "roof"}'}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "Wall time: 0.1 seconds\nbroken"}
    turns = [user(QUESTION), call, output]
    plain = await server.tokens(RESPONSES, responses(user(QUESTION), tools=[FUNCTION]))
    with_call = await server.tokens(RESPONSES, responses(*turns, tools=[FUNCTION]))
    if with_call <= plain:
        return Verdict("no", f"{with_call} tokens with a call, {plain} without")
    reply = await server.post(RESPONSES, responses(*turns, tools=[FUNCTION, NAMESPACE, {"type": "web_search"}]))
    taken = reply.status == 200
    return Verdict("yes" if taken else "partly", "" if taken else f"Codex's tools: {reply.words}")


BEHAVIOURS = (
    Behaviour("deferred-hidden", "A deferred tool is not in the prompt", deferred, "engine"),
    Behaviour("tool-reference", "… until a `tool_reference` describes it where it stands", reference, "engine"),
    Behaviour("server-tool", "A `web_search` tool beside ordinary ones is not fatal", server_tool, "engine"),
    Behaviour("cut-call", "A tool call cut by `max_tokens` is no error", cut_call, "calls"),
    Behaviour("broken-call", "A tool call of malformed JSON becomes text, not a 500", broken_call, "script"),
    Behaviour("incremental-call", "Tool input streams as it is generated", incremental, "calls"),
    Behaviour(
        "responses-calls",
        "Responses takes function calls, outputs, and Codex's tools",
        in_responses,
        "engine",
    ),
)
