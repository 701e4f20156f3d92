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
    assistant,
    messages,
    responses,
    tool_turns,
    user,
)
from tests.conformance.protocol.probe import BLOCK_TOKENS, MESSAGES, RESPONSES, Behaviour, Verdict, cached_of, prompt_of

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

OFF = {"type": "disabled"}  # some servers obey `tool_choice` only when thinking has ended
END_TOKENS = 2  # the end of a turn may be written by the template


def _forced(*, max_tokens: int) -> Json:
    """A body whose answer must be one long call."""
    tool = TOOL | {"strict": True, "input_schema": ONLY_SENSOR}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    return messages(user(ASK_CALL), tools=[tool], tool_choice=choice, max_tokens=max_tokens, thinking=OFF)


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
    """Its arguments are no JSON yet. Whole or streamed, the client sees what there was."""
    body = _forced(max_tokens=24)
    reply = await server.post(MESSAGES, body)
    if reply.status != 200:
        return Verdict("no", reply.words)
    whole = sum(len(block.get("text", "")) + len(block.get("input", {})) for block in reply.body["content"])
    deltas = [event["delta"] for event in await server.events(MESSAGES, body) if event["type"] == "content_block_delta"]
    streamed = sum(len(delta.get("text", "") + delta.get("partial_json", "")) for delta in deltas)
    lost = [name for name, size in {"whole": whole, "streamed": streamed}.items() if not size]
    if lost:
        return Verdict("no" if len(lost) == 2 else "partly", f"nothing of it is left {' or '.join(lost)}")
    reason = reply.body["stop_reason"]
    return Verdict("yes" if reason == "max_tokens" else "partly", f"stop_reason {reason}")


async def failed_result(server: Server) -> Verdict:
    """The model learns that its tool failed."""
    turns = tool_turns("no such sensor")
    good = await server.tokens(MESSAGES, messages(*turns, tools=[TOOL]))
    turns[-1]["content"][0]["is_error"] = True
    bad = await server.tokens(MESSAGES, messages(*turns, tools=[TOOL]))
    return Verdict("yes" if bad != good else "no", f"{bad} tokens, {good} for a good one")


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


async def own_tokens(server: Server) -> Verdict:
    """A call that comes back as an object must be the very tokens that the model wrote, which are in its cache."""
    body = messages(user(ASK_CALL), tools=[TOOL], max_tokens=200)
    first = await server.answer(MESSAGES, body)
    result = {"type": "tool_result", "tool_use_id": first["content"][-1]["id"], "content": "It is broken."}
    turns = [*body["messages"], assistant(first["content"]), user([result])]
    second = (await server.answer(MESSAGES, messages(*turns, tools=[TOOL])))["usage"]
    cached, before, made = cached_of(second), prompt_of(first["usage"]), first["usage"]["output_tokens"]
    kept = cached >= before + made - BLOCK_TOKENS - END_TOKENS
    return Verdict("yes" if kept else "no", f"{cached} cached, after a prompt of {before} and an answer of {made}")


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
    Behaviour("failed-result", "`is_error` of a tool result reaches the prompt", failed_result, "engine"),
    Behaviour("cut-call", "A tool call cut by `max_tokens` is no error and not lost", cut_call, "calls"),
    Behaviour("broken-call", "A tool call of malformed JSON becomes text, not a 500", broken_call, "script"),
    Behaviour("incremental-call", "Tool input streams as it is generated", incremental, "calls"),
    Behaviour("own-tokens", "A call that comes back is cached, but for its last block", own_tokens, "script"),
    Behaviour(
        "responses-calls",
        "Responses takes function calls, outputs, and Codex's tools",
        in_responses,
        "engine",
    ),
)
