"""The order and the end of a Messages stream, and how an answer may end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.protocol.bodies import ASK_SLOW, QUESTION, assistant, messages, user
from tests.conformance.protocol.probe import MESSAGES, Behaviour, Verdict

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Json, Server

LETTERS = ["e", "a", "o", "t"]  # some server takes four at most
LONGEST_WORD_TOKENS = 3


async def ends_with_stop(server: Server) -> Verdict:
    """Nothing follows `message_stop`: `[DONE]` belongs to another protocol."""
    events = await server.events(MESSAGES, messages(max_tokens=4))
    last = events[-1]["type"]
    return Verdict("yes" if last == "message_stop" else "no", f"last: {last}")


async def ping(server: Server) -> Verdict:
    """Before the first token, while the prompt waits or is read: else clients take silence for a dead connection."""
    events = await server.events(MESSAGES, messages(user(ASK_SLOW), max_tokens=4))
    kinds = [event["type"] for event in events]
    before = kinds[: kinds.index("content_block_start")] if "content_block_start" in kinds else kinds
    return Verdict("yes" if "ping" in before else "no", f"{before.count('ping')} pings before the first token")


async def stop_sequence(server: Server) -> Verdict:
    """The answer says which one ended it."""
    body = messages(max_tokens=400, stop_sequences=LETTERS)
    answer = await server.answer(MESSAGES, body)
    reason, which = answer["stop_reason"], answer.get("stop_sequence")
    if reason == "stop_sequence" and which in LETTERS:
        return Verdict("yes", f"{which!r}")
    return Verdict("no", f"stop_reason {reason}, stop_sequence {which}")


async def no_tokens(server: Server) -> Verdict:
    """Fills the cache and answers nothing."""
    reply = await server.post(MESSAGES, messages(max_tokens=0))
    if reply.status != 200:
        return Verdict("no", reply.words)
    said = reply.body["usage"]["output_tokens"]
    return Verdict("yes" if said == 0 else "partly", f"{said} output tokens")


async def prefill(server: Server) -> Verdict:
    """The model goes on from its words: no end of a turn, no header of another, stand between."""
    asked, begun = [user(QUESTION)], [user(QUESTION), assistant("The")]
    longer = await server.tokens(MESSAGES, messages(*begun)) - await server.tokens(MESSAGES, messages(*asked))
    return Verdict("yes" if 0 < longer <= LONGEST_WORD_TOKENS else "no", f"{longer} tokens longer")


async def thinking_modes(server: Server) -> Verdict:
    """Those that clients ask for."""
    budget = {"type": "enabled", "budget_tokens": 1024}
    modes: list[Json] = [budget, *({"type": mode} for mode in ("adaptive", "disabled", "between_tools"))]
    refused = []
    for mode in modes:
        body = messages(max_tokens=2048, stop_sequences=LETTERS, thinking=mode)
        reply = await server.post(MESSAGES, body)
        refused += [] if reply.status == 200 else [f"{mode['type']}: {reply.words}"]
    return Verdict("no" if len(refused) == len(modes) else "partly" if refused else "yes", "; ".join(refused))


async def structured(server: Server) -> Verdict:
    """A schema with one instance: whatever the model would say, its answer is that, or begins so."""
    schema = {"type": "object", "properties": {"title": {"enum": ["Roof"]}}, "required": ["title"]}
    form = {"format": {"type": "json_schema", "schema": schema}}
    body = messages(max_tokens=400, output_config=form, thinking={"type": "disabled"})
    blocks = (await server.answer(MESSAGES, body))["content"]
    said = "".join("".join(block.get("text", "") for block in blocks).split())
    return Verdict("yes" if said and '{"title":"Roof"}'.startswith(said) else "no", repr(said[:40]))


BEHAVIOURS = (
    Behaviour("no-done", "A Messages stream ends with `message_stop`, without `[DONE]`", ends_with_stop, "engine"),
    Behaviour("ping", "`ping` events during a long prefill", ping, "script"),
    Behaviour("stop-sequence", "`stop_sequence` names what ended the answer", stop_sequence, "engine"),
    Behaviour("prefill", "A last message of the assistant is continued, not answered", prefill, "engine"),
    Behaviour("thinking-modes", "`thinking` in all its modes is accepted", thinking_modes, "engine"),
    Behaviour("structured-output", "`output_config.format` is obeyed", structured, "calls"),
    Behaviour("max-tokens-zero", "`max_tokens: 0` is accepted", no_tokens, "engine"),
)
