"""What a conversation carries along must not end it, and must reach the prompt as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.protocol.bodies import (
    INSTRUCTIONS,
    PIXEL,
    QUESTION,
    TOOL,
    assistant,
    messages,
    text,
    tool_turns,
    user,
)
from tests.conformance.protocol.probe import BLOCK_TOKENS, MESSAGES, Behaviour, Refused, Verdict, cached_of, prompt_of

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Json, Server

IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
DOCUMENT: Json = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Roof: broken."}}
FOUND: Json = {
    "type": "search_result",
    "source": "notes/roof.md",
    "title": "Roof",
    "content": [text("The roof sensor was replaced in May.")],
}
DIARY = "The gauge at the harbour was read at noon and the roof at dusk. " * 30


async def _answered(server: Server, *turns: Json) -> Verdict:
    reply = await server.post(MESSAGES, messages(*turns, tools=[TOOL]))
    return Verdict("yes" if reply.status == 200 else "no", "" if reply.status == 200 else reply.words)


async def _noted(server: Server, with_it: list[Json], without: list[Json]) -> Verdict:
    """Accepted, and the model learns that there was something."""
    got = await server.tokens(MESSAGES, messages(*with_it, tools=[TOOL]))
    silent = got == await server.tokens(MESSAGES, messages(*without, tools=[TOOL]))
    return Verdict("partly" if silent else "yes", "dropped without a trace" if silent else "")


async def _worst(server: Server, cases: dict[str, tuple[list[Json], list[Json]]]) -> Verdict:
    """Of several cases (with it, without it) by name: yes when all are, no when none is."""
    found: dict[str, Verdict] = {}
    for name, (with_it, without) in cases.items():
        try:
            found[name] = await _noted(server, with_it, without)
        except Refused as refused:
            found[name] = Verdict("no", str(refused))
    said = "; ".join(f"{name}: {verdict.detail}" for name, verdict in found.items() if verdict.detail)
    kinds = {verdict.status for verdict in found.values()}
    return Verdict(kinds.pop() if len(kinds) == 1 else "partly", said)


async def _both(server: Server, first: list[Json], second: list[Json], names: tuple[str, str]) -> Verdict:
    verdicts = [await _answered(server, *turns) for turns in (first, second)]
    failed = [f"{name}: {v.detail}" for name, v in zip(names, verdicts, strict=True) if v.status == "no"]
    return Verdict(("yes", "partly", "no")[len(failed)], "; ".join(failed))


async def documents(server: Server) -> Verdict:
    """In a tool result, as file and search tools return them."""
    plain = tool_turns([text("see")])
    blocks = {"document": DOCUMENT, "search_result": FOUND}
    return await _worst(server, {name: (tool_turns([text("see"), block]), plain) for name, block in blocks.items()})


async def images(server: Server) -> Verdict:
    """An earlier message's, and a tool's."""
    later = [assistant("A dot."), user(QUESTION)]
    shown, hidden = ([user([*blocks, text("What is this?")]), *later] for blocks in ([IMAGE], []))
    tool = (tool_turns([text("see"), IMAGE]), tool_turns([text("see")]))
    return await _worst(server, {"earlier message": (shown, hidden), "tool result": tool})


async def server_calls(server: Server) -> Verdict:
    """A search that another server did, in the history of a conversation that moved here."""
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "roof"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    return await _answered(server, user(QUESTION), assistant([call, result, text("Nothing.")]), user("And now?"))


async def unsigned_thinking(server: Server) -> Verdict:
    """Clients return thinking with an empty signature or without one."""
    thought = {"type": "thinking", "thinking": "The roof, surely."}
    empty, absent = (
        [user(QUESTION), assistant([block, text("The roof.")]), user("Why?")]
        for block in (thought | {"signature": ""}, thought)
    )
    return await _both(server, empty, absent, ("empty", "absent"))


async def thinking_is_kept(server: Server) -> Verdict:
    """The template writes it, so it must be in the prompt."""
    thought = {"type": "thinking", "thinking": "The roof, surely.", "signature": "c2ln"}
    counts = []
    for blocks in ([text("The roof.")], [thought, text("The roof.")]):
        counts.append(await server.tokens(MESSAGES, messages(user(QUESTION), assistant(blocks), user("Why?"))))
    return Verdict("yes" if counts[1] > counts[0] else "no", f"{counts[1]} tokens with, {counts[0]} without")


async def late_system(server: Server) -> Verdict:
    """Between an answer and the next question, and at the end, as Claude Code sends it."""
    note = {"role": "system", "content": "9000 tokens left"}
    middle = [user(QUESTION), assistant("The roof."), note, user("Why?")]
    end = [user(QUESTION), assistant("The roof."), user("Why?"), note]
    return await _both(server, middle, end, ("in the middle", "at the end"))


async def late_system_prefix(server: Server) -> Verdict:
    """A note comes with every turn; the turn before must come from the cache, but for its last block."""
    turns = [user(DIARY + QUESTION), assistant("The roof."), user("Why?"), {"role": "system", "content": "9000 left"}]
    more = [assistant("Rain."), user("When?"), {"role": "system", "content": "8800 left"}]
    first = (await server.answer(MESSAGES, messages(*turns, system=INSTRUCTIONS)))["usage"]
    second = (await server.answer(MESSAGES, messages(*turns, *more, system=INSTRUCTIONS)))["usage"]
    cached, before = cached_of(second), prompt_of(first)
    # The first prompt ended in the header of an answer and may have ended inside a block.
    kept = cached >= before - BLOCK_TOKENS - 8
    return Verdict("yes" if kept else "no", f"{cached} of {before} tokens from the cache")


async def raw_arguments(server: Server) -> Verdict:
    """A call's arguments are read again as they were written: é is two bytes, its escaped form six."""
    counts = []
    for letters in ("é" * 20, "é" * 60):
        turns = tool_turns("done", arguments={"sensor": letters})
        counts.append(await server.tokens(MESSAGES, messages(*turns, tools=[TOOL])))
    each = (counts[1] - counts[0]) / 40
    return Verdict("yes" if 0 < each <= 2 else "no", f"{each:.1f} tokens per é")


BEHAVIOURS = (
    Behaviour("late-system", "`role: system` inside `messages` is accepted", late_system, "engine"),
    Behaviour("late-system-prefix", "… and what stood before it stays cached", late_system_prefix, "engine"),
    Behaviour("documents", "`document` and `search_result` in a tool result reach the prompt", documents, "engine"),
    Behaviour("images", "An image in a text-only model's history leaves a note, not an error", images, "engine"),
    Behaviour("server-calls", "Another server's search calls in the history are accepted", server_calls, "engine"),
    Behaviour("unsigned-thinking", "Thinking without a signature is accepted", unsigned_thinking, "engine"),
    Behaviour("thinking-kept", "Earlier thinking reaches the prompt", thinking_is_kept, "engine"),
    Behaviour("raw-arguments", "Non-ASCII tool arguments are not escaped in the prompt", raw_arguments, "engine"),
)
