"""The texts and bodies that behaviours send. All are invented; the attribution line has the form that clients send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Json

LINE = "x-anthropic-billing-header: cc_version=2.1.114.9e7; cc_entrypoint=cli; cch=ecc04;"
OTHER_LINE = LINE.replace("ecc04", "1f0a9")
INSTRUCTIONS = "You look after the build of the weather station. Name the file you mean."
QUESTION = "Which sensors failed last night?"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="

TOOL: Json = {
    "name": "look_up",
    "description": "Look up one sensor by its name.",
    "input_schema": {"type": "object", "properties": {"sensor": {"type": "string"}}, "required": ["sensor"]},
}
OTHER_TOOL: Json = {
    "name": "send_report",
    "description": "Send the report of the night to the people who look after the station.",
    "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
SENSOR = "the old one on the roof of the harbour, not the one that was put there in May"
ONLY_SENSOR: Json = {"type": "object", "properties": {"sensor": {"enum": [SENSOR]}}, "required": ["sensor"]}
CALL = f'<tool_call>\n{{"name": "look_up", "arguments": {{"sensor":"{SENSOR}"}}}}\n</tool_call>'
BROKEN_CALL = '<tool_call>\n{"name": "look_up", "arguments": {"sensor": }}\n</tool_call>'
ASK_CALL, ASK_BROKEN, ASK_SLOW = "Look it up now.", "Look it up badly.", "Take your time."
# What an engine that can be scripted answers to a prompt that ends in one of these questions.
SCRIPT: tuple[Json, ...] = (
    {"after": QUESTION, "text": "one two three four five six seven"},
    {"after": ASK_CALL, "text": CALL},
    {"after": ASK_BROKEN, "text": BROKEN_CALL},
    {"after": ASK_SLOW, "text": "At last.", "stall_s": 0.5},
)
FUNCTION: Json = {
    "type": "function",
    "name": TOOL["name"],
    "description": TOOL["description"],
    "parameters": TOOL["input_schema"],
}


def text(words: str) -> Json:
    """A text block."""
    return {"type": "text", "text": words}


def user(content: Any) -> Json:
    """A user's message."""
    return {"role": "user", "content": content}


def assistant(content: Any) -> Json:
    """An earlier answer."""
    return {"role": "assistant", "content": content}


def messages(*turns: Json, **fields: Any) -> Json:
    """A Messages body that asks for one token; the question is asked when no turns are given."""
    return {"max_tokens": 1, "messages": list(turns) or [user(QUESTION)], **fields}


def chat(*turns: Json, **fields: Any) -> Json:
    """A Chat Completions body that asks for one token."""
    return {"max_tokens": 1, "messages": [*turns, user(QUESTION)], **fields}


def responses(*items: Json, **fields: Any) -> Json:
    """A Responses body."""
    return {"max_output_tokens": 16, "store": False, "input": [*items, user(QUESTION)], **fields}


def tool_turns(content: Any, *, arguments: Json | None = None) -> list[Json]:
    """A question, a tool call, and its result in the newest message."""
    call = {"type": "tool_use", "id": "toolu_01", "name": TOOL["name"], "input": arguments or {"sensor": "roof"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_01", "content": content}
    return [user(QUESTION), assistant([call]), user([result])]
