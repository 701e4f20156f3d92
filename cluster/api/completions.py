"""OpenAI Completions: request bodies to prompts that are continued as they are.

Nothing is ever changed in such a prompt: no rule is applied, no template, and an attribution line stays where it is.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from cluster.api import body as fields_of
from cluster.api import sampling
from cluster.prompt.conversation import Conversation, Hints
from router.errors import InvalidRequest, RequestTooLarge
from router.limits import (
    INLINE_BODY_BYTES,
    MAX_CHOICES,
    MAX_COMPLETION_LOGPROBS,
    MAX_PROMPT_TOKENS,
    MAX_TOKEN_ID,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.api.body import Fields

# Fields that would change the answer, with the values that ask for nothing.
UNSERVED: Final = sampling.UNSERVED | {"echo": (False,), "response_format": ({"type": "text"},), "suffix": ("",)}
KNOWN: Final = fields_of.Known(
    sampling.INERT
    | sampling.SAMPLING_FIELDS
    | UNSERVED.keys()
    | {"logprobs", "max_tokens", "model", "prompt", "stream", "stream_options"}
)
DEFAULT_MAX_TOKENS: Final = 16  # the protocol's own
_Token = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
_FIRST: Final = re.compile(rb"\s*\[\s*(.)")  # of a list: what it begins with


def parse_completion(body: bytes) -> Conversation:
    """A `/v1/completions` body. Raises `InvalidRequest` or `RequestTooLarge`."""
    fields, unknown = fields_of.read_fields(body, KNOWN)
    fields_of.refuse(fields, UNSERVED)
    prompts = _prompts(fields)
    limits = sampling.limits_of(fields, max_tokens=_max_tokens(fields), logprobs=_logprobs(fields))
    if len(prompts) * limits.choices > MAX_CHOICES:
        raise InvalidRequest(f"prompt: more than {MAX_CHOICES} answers (prompts times `n`) to one request")
    stream, stream_usage = sampling.streaming_of(fields)
    return Conversation(
        api="completions",
        model=fields_of.required(fields, "model", str),
        prompts=prompts,
        limits=limits,
        hints=Hints(session=sampling.session_of(fields), ignored=unknown),
        stream=stream,
        stream_usage=stream_usage,
    )


def _prompts(fields: Fields) -> tuple[str | bytes, ...]:
    """One prompt or several, each as text or as tokens: all are what the first one is."""
    raw = fields.get("prompt", b"")
    first = _FIRST.match(raw)
    if first is None:
        return (_checked(fields_of.required(fields, "prompt", str), "prompt"),)
    if first[1] == b'"':
        if len(raw) > INLINE_BODY_BYTES and _count_strings(bytes(raw)) > MAX_CHOICES:
            raise InvalidRequest(f"prompt: more than {MAX_CHOICES} prompts")
        return _all_checked(fields_of.required(fields, "prompt", list[str]))
    if bytes(raw).count(b",") >= MAX_PROMPT_TOKENS:
        raise RequestTooLarge(f"prompt: more than {MAX_PROMPT_TOKENS} tokens")
    if first[1] == b"[":
        if bytes(raw).count(b"[") - 1 > MAX_CHOICES:
            raise InvalidRequest(f"prompt: more than {MAX_CHOICES} prompts")
        lists: list[list[int]] = fields_of.required(fields, "prompt", list[list[_Token]])
        return _all_checked(list(map(_packed, lists)))
    return _all_checked([_packed(fields_of.required(fields, "prompt", list[_Token]))])


def _count_strings(data: bytes) -> int:
    """How many strings a JSON value holds, without making them."""
    return data.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"') // 2


def _all_checked(prompts: Sequence[str | bytes]) -> tuple[str | bytes, ...]:
    if len(prompts) > MAX_CHOICES:
        raise InvalidRequest(f"prompt: more than {MAX_CHOICES} prompts")
    return tuple(_checked(prompt, f"prompt[{i}]") for i, prompt in enumerate(prompts))


def _checked(prompt: str | bytes, path: str) -> str | bytes:
    if not prompt:
        raise InvalidRequest(f"{path}: there is nothing to continue in an empty prompt")
    return prompt


def _packed(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()


def _max_tokens(fields: Fields) -> int:
    """0 fills the cache and says nothing."""
    wanted: int | None = fields_of.optional(fields, "max_tokens", int)
    if wanted is not None and wanted < 0:
        raise InvalidRequest("max_tokens: must be at least 0")
    return DEFAULT_MAX_TOKENS if wanted is None else wanted


def _logprobs(fields: Fields) -> int | None:
    wanted: int | None = fields_of.optional(fields, "logprobs", int)
    fields_of.within(wanted, "logprobs", low=0, high=MAX_COMPLETION_LOGPROBS)
    return wanted
