"""What vLLM's parsers want to know of a request: its tools and what the client allows, in vLLM's own form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from router.errors import InvalidRequest

if TYPE_CHECKING:
    from cluster.prompt.conversation import Conversation, Tool, ToolChoice


# Without it a call's arguments could be any JSON value.
_ANY_OBJECT: Final = {"type": "object", "additionalProperties": True}


def chat_request(conversation: Conversation, *, calls: bool) -> Any:
    """A `ChatCompletionRequest` without the conversation; without tools unless `calls`. Raises `InvalidRequest`."""
    return _request(conversation, [_function(tool) for tool in conversation.tools] if calls else [])


def form_request(conversation: Conversation) -> Any:
    """The same for the form that calls must have: arguments are objects, of strict tools such as fit their schema."""
    functions = []
    for tool in conversation.tools:
        function = _function(tool)
        functions.append(function | {"strict": True} | ({} if tool.strict else {"parameters": _ANY_OBJECT}))
    return _request(conversation, functions)


def _request(conversation: Conversation, functions: list[dict[str, Any]]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: PLC0415 - takes seconds
        ChatCompletionRequest,
    )

    fields: dict[str, Any] = {"model": conversation.model, "messages": [{"role": "user", "content": ""}]}
    if functions:
        fields["tools"] = [{"type": "function", "function": function} for function in functions]
        fields["tool_choice"] = _choice(conversation.tool_choice)
        fields["parallel_tool_calls"] = conversation.tool_choice.parallel
    try:
        return ChatCompletionRequest(**fields)
    except ValueError as fault:
        raise InvalidRequest(f"tools: {_first_line(fault)}") from fault


def _function(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": msgspec.json.decode(tool.parameters)}


def _choice(choice: ToolChoice) -> Any:
    match choice.mode:
        case "any":
            return "required"
        case "tool":
            return {"type": "function", "function": {"name": choice.name}}
        case _:
            return "auto"


def _first_line(fault: ValueError) -> str:
    return next((line.strip() for line in str(fault).splitlines()[2:3]), str(fault))
