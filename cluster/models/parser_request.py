"""What vLLM's parsers want to know of a request: its tools and what the client allows, in vLLM's own form."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import msgspec

from router.errors import InvalidRequest
from router.limits import MAX_REMEMBERED_TOOLS_CHARS, REMEMBERED_TOOL_LISTS

if TYPE_CHECKING:
    from cluster.prompt.conversation import Conversation, Tool, ToolChoice


# Without it a call's arguments could be any JSON value.
_ANY_OBJECT: Final = {"type": "object", "additionalProperties": True}


class ChatRequests:
    """Requests by the tools that they offer: agents send the same ones with every turn, and checking them takes long.

    Remembers REMEMBERED_TOOL_LISTS, the least recently used goes first; none of more than MAX_REMEMBERED_TOOLS_CHARS.
    Safe to use from threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[Any, Any] = OrderedDict()

    def get(self, conversation: Conversation, *, calls: bool) -> Any:
        """As `chat_request`: a copy whose fields may be set. Raises `InvalidRequest`."""
        tools = conversation.tools if calls else ()
        key = (conversation.model, tools, conversation.tool_choice)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
        if known is None:
            known = chat_request(conversation, calls=calls)
            if sum(len(tool.description) + len(tool.parameters) for tool in tools) <= MAX_REMEMBERED_TOOLS_CHARS:
                self._keep(key, known)
        return known.model_copy()

    def _keep(self, key: Any, request: Any) -> None:
        with self._lock:
            self._known[key] = request
            while len(self._known) > REMEMBERED_TOOL_LISTS:
                self._known.popitem(last=False)

    def __repr__(self) -> str:
        return f"ChatRequests({len(self._known)} of {REMEMBERED_TOOL_LISTS})"


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
