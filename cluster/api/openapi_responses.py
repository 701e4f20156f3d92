"""OpenAI Responses in JSON schemas."""

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
from router.limits import MAX_BLOCKS_PER_MESSAGE, MAX_MESSAGES, MAX_TOOL_NAME_CHARS, MAX_TOOLS, MAX_TOP_LOGPROBS

_NAME: Final = text(minLength=1, maxLength=MAX_TOOL_NAME_CHARS)
_READ: Final = typed("input_text", {"text": text()}, required=("text",))
_SAID: Final = typed("output_text", {"text": text()}, required=("text",))
_SUMMARY: Final = typed("summary_text", {"text": text()}, required=("text",))
_MESSAGE: Final = record(
    {
        "type": {"const": "message"},
        "role": one_of("user", "assistant", "system", "developer"),
        "content": either(text(), array(either(_READ, _SAID), maxItems=MAX_BLOCKS_PER_MESSAGE)),
    },
    required=("role", "content"),
)
_CALL: Final = typed(
    "function_call",
    {"call_id": text(minLength=1), "name": _NAME, "arguments": text()},
    required=("call_id", "name", "arguments"),
)
_RESULT: Final = typed(
    "function_call_output",
    {"call_id": text(minLength=1), "output": either(text(), array(_READ))},
    required=("call_id", "output"),
)
_REASONING: Final = typed(
    "reasoning", {"summary": array(_SUMMARY), "encrypted_content": maybe(text())}, required=("summary",)
)
_FORM: Final = either(
    typed("text", {}),
    typed("json_object", {}),
    typed("json_schema", {"name": text(), "schema": ANY_OBJECT}, required=("name", "schema")),
)
_USAGE: Final = record(
    {
        "input_tokens": integer(0),
        "input_tokens_details": record({"cached_tokens": integer(0)}, required=("cached_tokens",)),
        "output_tokens": integer(0),
        "output_tokens_details": record({"reasoning_tokens": integer(0)}, required=("reasoning_tokens",)),
        "total_tokens": integer(0),
    },
    required=("input_tokens", "output_tokens", "total_tokens"),
)

SCHEMAS: Final[dict[str, Schema]] = {
    "ResponseItem": either(_MESSAGE, _REASONING, _CALL, _RESULT),
    "ResponseTool": typed(
        "function",
        {"name": _NAME, "description": maybe(text()), "parameters": ANY_OBJECT, "strict": maybe(BOOLEAN)},
        required=("name", "parameters"),
    ),
    "ResponseRequest": record(
        {
            "model": text("A name from `/v1/models`, or an alias of one."),
            "input": either(text(), array(ref("ResponseItem"), minItems=1, maxItems=MAX_MESSAGES)),
            "instructions": maybe(text()),
            "previous_response_id": maybe(text("Remembered for a while, and only for whoever made it.")),
            "store": maybe(BOOLEAN),
            "tools": array(ref("ResponseTool"), maxItems=MAX_TOOLS),
            "tool_choice": either(
                one_of("none", "auto", "required"), typed("function", {"name": _NAME}, required=("name",))
            ),
            "parallel_tool_calls": maybe(BOOLEAN),
            "text": record({"format": _FORM}),
            "reasoning": maybe(
                record({"effort": maybe(one_of("none", "minimal", "low", "medium", "high", "xhigh", "max"))})
            ),
            "include": maybe(array(one_of("reasoning.encrypted_content", "message.output_text.logprobs"))),
            "max_output_tokens": maybe(integer(1)),
            "temperature": maybe(number(0, 2)),
            "top_p": maybe(number(0, 1)),
            "top_logprobs": maybe(integer(0, MAX_TOP_LOGPROBS)),
            "stream": maybe(BOOLEAN),
            "prompt_cache_key": maybe(text()),
            "metadata": maybe({"type": "object", "additionalProperties": text()}),
        },
        required=("model", "input"),
    ),
    "ResponseCount": record(
        {"object": {"const": "response.input_tokens"}, "input_tokens": integer(0)}, required=("object", "input_tokens")
    ),
    "Response": record(
        {
            "id": text(pattern="^resp_"),
            "object": {"const": "response"},
            "created_at": integer(),
            "status": one_of("completed", "incomplete"),
            "model": text(),
            "output": array(record({"type": one_of("reasoning", "message", "function_call", "custom_tool_call")})),
            "usage": _USAGE,
        },
        required=("id", "object", "created_at", "status", "model", "output", "usage"),
    ),
}
