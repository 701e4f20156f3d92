"""OpenAI Completions: request bodies to prompts that are continued as they are.

Nothing is ever changed in such a prompt: no rule is applied, no template, and an attribution line stays where it is.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from cluster.api import body as fields_of
from cluster.api import sampling
from cluster.prompt.conversation import Conversation, Hints
from router.errors import InvalidRequest
from router.limits import MAX_CHOICES, MAX_COMPLETION_LOGPROBS, MAX_TOKEN_ID

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
_Prompt = str | list[str | _Token | list[_Token]]


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
    """One prompt or several, each as text or as tokens."""
    given: str | list[str | int | list[int]] = fields_of.required(fields, "prompt", _Prompt)
    if isinstance(given, str):
        return (_checked(given, "prompt"),)
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise InvalidRequest("prompt: texts and tokens cannot be mixed")
    if kinds == {int}:
        return (_packed([token for token in given if isinstance(token, int)]),)
    if not 0 < len(given) <= MAX_CHOICES:
        raise InvalidRequest(f"prompt: must be between 1 and {MAX_CHOICES} prompts")
    texts = [one if isinstance(one, str) else _packed(one) for one in given if not isinstance(one, int)]
    return tuple(_checked(text, f"prompt[{i}]") for i, text in enumerate(texts))


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
