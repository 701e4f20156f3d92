"""OpenAI Chat Completions and Completions in JSON schemas."""

from __future__ import annotations

from typing import Final

from cluster.api.openapi_forms import (
    ANY_OBJECT,
    BOOLEAN,
    NULL,
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
    MAX_CHOICES,
    MAX_COMPLETION_LOGPROBS,
    MAX_LOGIT_BIAS_TOKENS,
    MAX_MESSAGES,
    MAX_STOP_SEQUENCE_CHARS,
    MAX_STOP_SEQUENCES,
    MAX_TOKEN_ID,
    MAX_TOOL_NAME_CHARS,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
)

_STOP: Final = text(maxLength=MAX_STOP_SEQUENCE_CHARS)
_NAME: Final = text(minLength=1, maxLength=MAX_TOOL_NAME_CHARS)
_TOKENS: Final = array(integer(0, MAX_TOKEN_ID), minItems=1)
SAMPLING: Final[dict[str, Schema]] = {
    "model": text("A name from `/v1/models`, or an alias of one."),
    "temperature": maybe(number(0, 2)),
    "top_p": maybe(number(0, 1)),
    "top_k": maybe(integer(-1, 2**31 - 1)),
    "min_p": maybe(number(0, 1)),
    "presence_penalty": maybe(number(-2, 2)),
    "frequency_penalty": maybe(number(-2, 2)),
    "repetition_penalty": maybe(number(0.01, 100)),
    "seed": maybe(integer(-(2**63), 2**63 - 1)),
    "stop": either(_STOP, array(_STOP, maxItems=MAX_STOP_SEQUENCES), NULL),
    "n": maybe(integer(1, MAX_CHOICES)),
    "logit_bias": maybe(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": number(-100, 100),
            "maxProperties": MAX_LOGIT_BIAS_TOKENS,
        }
    ),
    "stream": maybe(BOOLEAN),
    "stream_options": maybe(record({"include_usage": maybe(BOOLEAN)})),
    "user": maybe(text()),
    "prompt_cache_key": maybe(text()),
}
_FUNCTION_CALL: Final = record({"name": text(), "arguments": text()}, required=("name", "arguments"))
_CALL: Final = typed("function", {"id": text(), "function": _FUNCTION_CALL}, required=("id", "function"))
_TEXT: Final = typed("text", {"text": text()}, required=("text",))
_IMAGE: Final = typed("image_url", {"image_url": record({"url": text()}, required=("url",))}, required=("image_url",))
_WORDS: Final = either(text(), array(_TEXT, maxItems=MAX_BLOCKS_PER_MESSAGE))
_TURN: Final = either(
    record({"role": one_of("system", "developer"), "content": _WORDS}, required=("role", "content")),
    record(
        {"role": {"const": "user"}, "content": either(text(), array(either(_TEXT, _IMAGE)))},
        required=("role", "content"),
    ),
    record(
        {
            "role": {"const": "assistant"},
            "content": _WORDS,
            "reasoning_content": maybe(text()),
            "tool_calls": maybe(array(_CALL)),
        },
        required=("role", "content"),
    ),
    record(
        {"role": {"const": "tool"}, "tool_call_id": text(), "content": _WORDS},
        required=("role", "tool_call_id", "content"),
    ),
)
_FORM: Final = either(
    typed("text", {}),
    typed("json_object", {}),
    typed("json_schema", {"json_schema": record({"name": text(), "schema": ANY_OBJECT}, required=("schema",))}),
)
_USAGE: Final = record(
    {
        "prompt_tokens": integer(0),
        "completion_tokens": integer(0),
        "total_tokens": integer(0),
        "prompt_tokens_details": record({"cached_tokens": integer(0)}, required=("cached_tokens",)),
        "completion_tokens_details": record({"reasoning_tokens": integer(0)}, required=("reasoning_tokens",)),
    },
    required=("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"),
)
_TOKEN: Final = {"token": text(), "bytes": array(integer(0, 255)), "logprob": number(high=0)}
_LOGPROBS: Final = record(
    {
        "content": array(
            record(
                {**_TOKEN, "top_logprobs": array(record(_TOKEN, required=tuple(_TOKEN)))},
                required=(*_TOKEN, "top_logprobs"),
            )
        )
    },
    required=("content",),
)
_ANSWER: Final = record(
    {
        "role": {"const": "assistant"},
        "content": maybe(text()),
        "refusal": NULL,
        "reasoning_content": text(),
        "tool_calls": array(_CALL),
    },
    required=("role", "content", "refusal"),
)
_REASON: Final = one_of("stop", "length", "tool_calls")


def _answer(kind: str, choice: Schema) -> Schema:
    fields = {"id": text(), "object": {"const": kind}, "created": integer(), "model": text()}
    fields |= {"choices": array(choice, minItems=1), "usage": _USAGE}
    return record(fields, required=tuple(fields))


SCHEMAS: Final[dict[str, Schema]] = {
    "ChatTurn": _TURN,
    "ChatTool": typed(
        "function",
        {"function": record({"name": _NAME, "description": text(), "parameters": ANY_OBJECT}, required=("name",))},
        required=("function",),
    ),
    "ChatRequest": record(
        {
            **SAMPLING,
            "messages": array(ref("ChatTurn"), minItems=1, maxItems=MAX_MESSAGES),
            "max_tokens": maybe(integer(1)),
            "max_completion_tokens": maybe(integer(1)),
            "logprobs": maybe(BOOLEAN),
            "top_logprobs": maybe(integer(0, MAX_TOP_LOGPROBS)),
            "tools": maybe(array(ref("ChatTool"), maxItems=MAX_TOOLS)),
            "tool_choice": either(
                one_of("none", "auto", "required"),
                typed("function", {"function": record({"name": _NAME}, required=("name",))}, required=("function",)),
            ),
            "parallel_tool_calls": maybe(BOOLEAN),
            "response_format": maybe(_FORM),
            "reasoning_effort": maybe(one_of("none", "minimal", "low", "medium", "high", "xhigh", "max")),
        },
        required=("model", "messages"),
    ),
    "ChatCompletion": _answer(
        "chat.completion",
        record(
            {"index": integer(0), "message": _ANSWER, "logprobs": maybe(_LOGPROBS), "finish_reason": _REASON},
            required=("index", "message", "logprobs", "finish_reason"),
        ),
    ),
    "CompletionRequest": record(
        {
            **SAMPLING,
            "prompt": either(
                text(minLength=1),
                array(text(minLength=1), minItems=1, maxItems=MAX_CHOICES),
                _TOKENS,
                array(_TOKENS, minItems=1, maxItems=MAX_CHOICES),
            ),
            "max_tokens": maybe(integer(0)),
            "logprobs": maybe(integer(0, MAX_COMPLETION_LOGPROBS)),
        },
        required=("model", "prompt"),
    ),
    "Completion": _answer(
        "text_completion",
        record(
            {
                "index": integer(0),
                "text": text(),
                "logprobs": maybe(
                    record(
                        {
                            "tokens": array(text()),
                            "token_logprobs": array(number(high=0)),
                            "top_logprobs": maybe(array(ANY_OBJECT)),
                            "text_offset": array(integer(0)),
                        },
                        required=("tokens", "token_logprobs", "top_logprobs", "text_offset"),
                    )
                ),
                "finish_reason": _REASON,
            },
            required=("index", "text", "logprobs", "finish_reason"),
        ),
    ),
    "OpenAIError": record(
        {
            "error": record(
                {"message": text(minLength=1), "type": text(), "param": maybe(text()), "code": maybe(text())},
                required=("message", "type", "param", "code"),
            )
        },
        required=("error",),
    ),
}
