"""Anthropic Messages in JSON schemas."""

from __future__ import annotations

from typing import Final

from cluster.api.openapi_forms import (
    ANY_OBJECT,
    BOOLEAN,
    Schema,
    array,
    either,
    integer,
    maybe,
    number,
    one_of,
    record,
    ref,
    text,
    typed,
)
from router.limits import (
    MAX_BLOCKS_PER_MESSAGE,
    MAX_MESSAGES,
    MAX_STOP_SEQUENCE_CHARS,
    MAX_STOP_SEQUENCES,
    MAX_TOOL_NAME_CHARS,
    MAX_TOOLS,
)

_CACHE: Final = {"cache_control": maybe(ANY_OBJECT)}
_TEXT: Final = typed("text", {"text": text(), **_CACHE}, required=("text",))
_SOURCE: Final = either(
    typed("base64", {"media_type": text(), "data": text()}, required=("media_type", "data")),
    typed("url", {"url": text()}, required=("url",)),
)
_IMAGE: Final = typed("image", {"source": _SOURCE, **_CACHE}, required=("source",))
_RESULT: Final = typed(
    "tool_result",
    {"tool_use_id": text(), "content": either(text(), array(either(_TEXT, _IMAGE))), "is_error": BOOLEAN, **_CACHE},
    required=("tool_use_id",),
)
_CALL: Final = typed(
    "tool_use",
    {"id": text(), "name": text(minLength=1), "input": ANY_OBJECT, **_CACHE},
    required=("id", "name", "input"),
)
_THINKING: Final = typed("thinking", {"thinking": text(), "signature": text()}, required=("thinking",))
_PROMPT: Final = {
    "model": text("A name from `/v1/models`, or an alias of one."),
    "messages": array(ref("MessagesTurn"), minItems=1, maxItems=MAX_MESSAGES),
    "system": either(text(), array(_TEXT)),
    "tools": array(ref("MessagesTool"), maxItems=MAX_TOOLS),
    "tool_choice": either(
        typed("auto", {"disable_parallel_tool_use": BOOLEAN}),
        typed("any", {"disable_parallel_tool_use": BOOLEAN}),
        typed("tool", {"name": text(), "disable_parallel_tool_use": BOOLEAN}, required=("name",)),
        typed("none", {}),
    ),
    "thinking": either(
        typed("enabled", {"budget_tokens": integer(1)}, required=("budget_tokens",)),
        typed("adaptive", {"display": one_of("omitted", "summarized", "updates")}),
        typed("disabled", {}),
    ),
}
_USAGE: Final = {
    name: integer(0)
    for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
}

SCHEMAS: Final[dict[str, Schema]] = {
    "MessagesTurn": record(
        {
            "role": one_of("user", "assistant", "system"),
            "content": either(
                text(), array(either(_TEXT, _IMAGE, _RESULT, _CALL, _THINKING), maxItems=MAX_BLOCKS_PER_MESSAGE)
            ),
        },
        required=("role", "content"),
        description="Further types of blocks are read or left out; see the documentation of the protocol.",
    ),
    "MessagesTool": record(
        {
            "name": text(minLength=1, maxLength=MAX_TOOL_NAME_CHARS),
            "description": text(),
            "input_schema": ANY_OBJECT,
            "defer_loading": BOOLEAN,
            "strict": BOOLEAN,
            **_CACHE,
        },
        required=("name", "input_schema"),
    ),
    "MessagesRequest": record(
        {
            **_PROMPT,
            "max_tokens": integer(0),
            "temperature": number(0, 2),
            "top_p": number(0, 1),
            "top_k": integer(0, 2**31 - 1),
            "stop_sequences": array(text(maxLength=MAX_STOP_SEQUENCE_CHARS), maxItems=MAX_STOP_SEQUENCES),
            "stream": BOOLEAN,
            "output_config": record(
                {
                    "effort": one_of("low", "medium", "high", "xhigh", "max"),
                    "format": maybe(typed("json_schema", {"schema": ANY_OBJECT}, required=("schema",))),
                }
            ),
            "metadata": record({"user_id": maybe(text())}),
        },
        required=("model", "messages", "max_tokens"),
    ),
    "CountRequest": record(_PROMPT, required=("model", "messages")),
    "Count": record({"input_tokens": integer(0)}, required=("input_tokens",)),
    "Message": record(
        {
            "id": text(),
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": text(),
            "content": array(
                record({"type": one_of("text", "thinking", "redacted_thinking", "tool_use")}, required=("type",))
            ),
            "stop_reason": one_of(
                "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
            ),
            "stop_sequence": maybe(text()),
            "usage": record(_USAGE, required=tuple(_USAGE)),
        },
        required=("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"),
    ),
    "MessagesError": record(
        {
            "type": {"const": "error"},
            "error": record({"type": text(), "message": text(minLength=1)}, required=("type", "message")),
            "request_id": text(pattern="^req_"),
        },
        required=("type", "error", "request_id"),
    ),
}
