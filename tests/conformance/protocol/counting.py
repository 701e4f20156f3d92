"""Token counts: exact, and equal for forms that mean the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.protocol.bodies import (
    INSTRUCTIONS,
    QUESTION,
    TOOL,
    chat,
    messages,
    text,
    tool_turns,
    user,
)
from tests.conformance.protocol.probe import (
    CHAT,
    COUNT,
    MESSAGES,
    Behaviour,
    Verdict,
    cached_of,
    first,
    prompt_of,
)

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Server

LONG = "The gauge at the harbour was read at noon. " * 60


def _equal(got: int, expected: int) -> Verdict:
    return Verdict("yes" if got == expected else "no", f"{got} against {expected}" if got != expected else f"{got}")


async def count_is_exact(server: Server) -> Verdict:
    body = messages(*tool_turns("all is well"), system=INSTRUCTIONS, tools=[TOOL])
    counted = (await server.answer(COUNT, body))["input_tokens"]
    return _equal(counted, await server.tokens(MESSAGES, body))


async def start_is_exact(server: Server) -> Verdict:
    events = await server.events(MESSAGES, messages(user(LONG), system=INSTRUCTIONS))
    start = first(events, "message_start")["message"]["usage"]
    end = first(events, "message_delta")["usage"]
    return _equal(prompt_of(start), prompt_of(start | end))


async def usage_adds_up(server: Server) -> Verdict:
    """The second time most of the prompt comes from the cache, and the sum stays what it was."""
    body = messages(user(LONG + "Read twice."), system=INSTRUCTIONS)
    first = (await server.answer(MESSAGES, body))["usage"]
    second = (await server.answer(MESSAGES, body))["usage"]
    cached, total = cached_of(second), prompt_of(second)
    detail = f"{second['input_tokens']} + {cached} cached = {total}, first {prompt_of(first)}"
    return Verdict("yes" if cached > 0 and total == prompt_of(first) else "no", detail)


async def chat_tells_cached(server: Server) -> Verdict:
    """In the field that OpenAI's clients read."""
    body = chat({"role": "system", "content": LONG})
    await server.answer(CHAT, body)
    details = (await server.answer(CHAT, body))["usage"].get("prompt_tokens_details") or {}
    return Verdict("yes" if details.get("cached_tokens") else "no", f"{details.get('cached_tokens')} cached")


async def empty_system(server: Server) -> Verdict:
    counts = [await server.tokens(MESSAGES, body) for body in (messages(), messages(system=[]), messages(system=""))]
    if counts[0] == counts[1] == counts[2]:
        return Verdict("yes", f"{counts[0]} tokens")
    return Verdict("no", f"list {counts[1]}, string {counts[2]} tokens against {counts[0]}")


async def string_is_block(server: Server) -> Verdict:
    """Also with a cache mark on the block: clients flip between the forms and move the mark every turn."""
    marked = text(QUESTION) | {"cache_control": {"type": "ephemeral"}}
    bodies = [
        messages(user(QUESTION), system=INSTRUCTIONS),
        messages(user([text(QUESTION)]), system=[text(INSTRUCTIONS)]),
        messages(user([marked]), system=INSTRUCTIONS),
    ]
    counts = [await server.tokens(MESSAGES, body) for body in bodies]
    return Verdict("yes" if len(set(counts)) == 1 else "no", " = ".join(map(str, counts)))


BEHAVIOURS = (
    Behaviour("count-tokens-exact", "`count_tokens` equals the usage of the request itself", count_is_exact, "engine"),
    Behaviour("message-start-exact", "`message_start` brings the exact prompt tokens", start_is_exact, "engine"),
    Behaviour("usage-adds-up", "input and cached tokens add up to the prompt", usage_adds_up, "engine"),
    Behaviour("chat-cached", "Usage of Chat Completions tells cached tokens", chat_tells_cached, "engine"),
    Behaviour("empty-system", "An empty `system` equals none", empty_system, "engine"),
    Behaviour("string-is-block", "A string equals one text block, marked or not", string_is_block, "engine"),
)
