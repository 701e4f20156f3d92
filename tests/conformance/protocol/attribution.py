"""The attribution line that coding agents put into the system text: it changes, so it must not reach the prompt.

Measured in prompt tokens against the same request without the line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conformance.protocol.bodies import (
    INSTRUCTIONS,
    LINE,
    OTHER_LINE,
    QUESTION,
    chat,
    messages,
    responses,
    text,
    user,
)
from tests.conformance.protocol.probe import CHAT, COUNT, MESSAGES, RESPONSES, Behaviour, Verdict

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Json, Server


async def _same(server: Server, path: str, body: Json, without: Json) -> Verdict:
    got, expected = await server.tokens(path, body), await server.tokens(path, without)
    detail = f"{got} tokens" if got == expected else f"{got} tokens against {expected}"
    return Verdict("yes" if got == expected else "no", detail)


async def _same_system(server: Server, system: Any, without: Any = INSTRUCTIONS) -> Verdict:
    return await _same(server, MESSAGES, messages(system=system), messages(system=without))


async def string(server: Server) -> Verdict:
    return await _same_system(server, f"{LINE}\n{INSTRUCTIONS}")


async def block(server: Server) -> Verdict:
    return await _same_system(server, [text(LINE), text(INSTRUCTIONS)])


async def block_with_newline(server: Server) -> Verdict:
    return await _same_system(server, [text(LINE + "\n"), text(INSTRUCTIONS)])


async def alone(server: Server) -> Verdict:
    """As a string and as a list: both must equal a request without system text."""
    found = [await _same(server, MESSAGES, messages(system=s), messages()) for s in (LINE, [text(LINE)])]
    failed = [verdict for verdict in found if verdict.status == "no"]
    if len(failed) == 1:
        return Verdict("partly", f"as one of string and block: {failed[0].detail}")
    return failed[0] if failed else found[0]


async def twice(server: Server) -> Verdict:
    return await _same_system(server, f"{LINE}\n{OTHER_LINE}\n{INSTRUCTIONS}")


async def other_case(server: Server) -> Verdict:
    line = LINE.replace("x-anthropic-billing-header", "X-Anthropic-Billing-Header")
    return await _same_system(server, f"{line}\n{INSTRUCTIONS}")


async def not_first(server: Server) -> Verdict:
    return await _same_system(server, f"{INSTRUCTIONS}\n{LINE}\n{QUESTION}", f"{INSTRUCTIONS}\n{QUESTION}")


async def shared_block(server: Server) -> Verdict:
    """The line goes, the instructions behind it in the same block stay."""
    got = await server.tokens(MESSAGES, messages(system=[text(f"{LINE}\n{INSTRUCTIONS}")]))
    with_instructions = await server.tokens(MESSAGES, messages(system=[text(INSTRUCTIONS)]))
    if got == with_instructions:
        return Verdict("yes", f"{got} tokens")
    lost = got <= await server.tokens(MESSAGES, messages())
    return Verdict("no", f"{got} tokens against {with_instructions}" + (": the instructions are lost" if lost else ""))


async def in_chat(server: Server) -> Verdict:
    with_line, without = ({"role": "system", "content": s} for s in (f"{LINE}\n{INSTRUCTIONS}", INSTRUCTIONS))
    return await _same(server, CHAT, chat(with_line), chat(without))


async def in_responses(server: Server) -> Verdict:
    with_line = responses(instructions=f"{LINE}\n{INSTRUCTIONS}")
    return await _same(server, RESPONSES, with_line, responses(instructions=INSTRUCTIONS))


async def never_in_user_text(server: Server) -> Verdict:
    got = await server.tokens(MESSAGES, messages(user(f"{LINE}\n{QUESTION}"), system=INSTRUCTIONS))
    without = await server.tokens(MESSAGES, messages(system=INSTRUCTIONS))
    return Verdict("yes" if got > without else "no", f"{got} tokens against {without} without it")


async def in_count_tokens(server: Server) -> Verdict:
    """Of the forms that clients send: a string and a block of its own."""
    forms = [f"{LINE}\n{INSTRUCTIONS}", [text(LINE), text(INSTRUCTIONS)]]
    bodies = [messages(system=system) for system in (INSTRUCTIONS, *forms)]
    counts = [(await server.answer(COUNT, body))["input_tokens"] for body in bodies]
    equal = len(set(counts)) == 1
    return Verdict("yes" if equal else "no", f"{counts[0]}" if equal else f"{counts[1:]} against {counts[0]}")


BEHAVIOURS = (
    Behaviour("attribution-string", "Line at the start of a string `system` leaves no trace", string),
    Behaviour("attribution-block", "… as a block of its own", block),
    Behaviour("attribution-block-newline", "… as a block of its own that ends in a newline", block_with_newline),
    Behaviour("attribution-alone", "… as the whole system text: equals no system text", alone),
    Behaviour("attribution-twice", "… twice", twice),
    Behaviour("attribution-case", "… in other letter case", other_case),
    Behaviour("attribution-not-first", "… after the first line", not_first),
    Behaviour("attribution-shared-block", "… in one block with instructions, which stay", shared_block),
    Behaviour("attribution-chat", "… in the system message of Chat Completions", in_chat),
    Behaviour("attribution-responses", "… in `instructions` of Responses", in_responses),
    Behaviour("attribution-user-text", "The same line in a user's text is left alone", never_in_user_text),
    Behaviour("attribution-count-tokens", "`count_tokens` is the same with and without the line", in_count_tokens),
)
