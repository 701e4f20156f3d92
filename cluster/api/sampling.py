"""What OpenAI's Chat Completions and Completions ask of the sampler, by the same names and within the same bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cluster.api import body as fields_of
from cluster.prompt.conversation import Limits
from router.errors import InvalidRequest
from router.limits import MAX_CHOICES, MAX_HINT_CHARS, MAX_LOGIT_BIAS_TOKENS, MAX_SAMPLING_FIELD_BYTES, MAX_TOKEN_ID

if TYPE_CHECKING:
    from cluster.api.body import Fields

SAMPLING_FIELDS: Final = frozenset(
    {"frequency_penalty", "logit_bias", "min_p", "n", "presence_penalty", "repetition_penalty", "seed", "stop",
     "temperature", "top_k", "top_p"}
)  # fmt: skip
# Wishes that are not served, with the values that ask for nothing.
UNSERVED: Final = {"best_of": (1,), "length_penalty": (1, 1.0), "use_beam_search": (False,)}
# Fields without any effect on the answer.
INERT: Final = frozenset(
    {"metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
     "service_tier", "store", "user"}
)  # fmt: skip

# How hard to think, where the model knows of it.
EFFORTS: Final = frozenset({"minimal", "low", "medium", "high", "xhigh", "max"})


class StreamOptions(msgspec.Struct):
    """`stream_options`; others of its fields change nothing that matters."""

    include_usage: bool | None = None


def limits_of(fields: Fields, *, max_tokens: int | None, logprobs: int | None) -> Limits:
    """The checked wishes. Raises `InvalidRequest` that names the first one out of its bounds."""
    for name in SAMPLING_FIELDS & fields.keys():
        if memoryview(fields[name]).nbytes > MAX_SAMPLING_FIELD_BYTES:
            raise InvalidRequest(f"{name}: more than {MAX_SAMPLING_FIELD_BYTES} bytes")
    top_p = _number(fields, "top_p", low=0, high=1)
    top_k: int | None = fields_of.optional(fields, "top_k", int)
    seed: int | None = fields_of.optional(fields, "seed", int)
    stop: str | list[str] = fields_of.optional(fields, "stop", str | list[str]) or []
    fields_of.within(top_k, "top_k", low=-1, high=2**31 - 1)
    fields_of.within(seed, "seed", low=-(2**63), high=2**63 - 1)
    return Limits(
        max_tokens=max_tokens,
        temperature=fields_of.temperature_of(_number(fields, "temperature", low=0, high=2), top_p),
        top_p=top_p or 1.0,
        top_k=max(top_k or 0, 0),
        min_p=_number(fields, "min_p", low=0, high=1) or 0.0,
        presence_penalty=_number(fields, "presence_penalty", low=-2, high=2) or 0.0,
        frequency_penalty=_number(fields, "frequency_penalty", low=-2, high=2) or 0.0,
        repetition_penalty=_number(fields, "repetition_penalty", low=0.01, high=100) or 1.0,
        logit_bias=_logit_bias(fields),
        seed=seed,
        stop=fields_of.stop_sequences([stop] if isinstance(stop, str) else stop, "stop"),
        logprobs=logprobs,
        choices=_choices(fields),
    )


def streaming_of(fields: Fields) -> tuple[bool, bool]:
    """Whether the answer is streamed, and whether its usage is."""
    options: StreamOptions | None = fields_of.optional(fields, "stream_options", StreamOptions)
    return bool(fields_of.optional(fields, "stream", bool)), bool(options and options.include_usage)


def session_of(fields: Fields) -> str:
    """The cache key that agents choose per session. Anything but a string is no hint."""
    try:
        return msgspec.json.decode(fields["prompt_cache_key"], type=str)[:MAX_HINT_CHARS]
    except (KeyError, msgspec.DecodeError):
        return ""


def _number(fields: Fields, name: str, *, low: float, high: float) -> float | None:
    value: float | None = fields_of.optional(fields, name, float)
    return fields_of.within(value, name, low=low, high=high)


def _choices(fields: Fields) -> int:
    choices: int | None = fields_of.optional(fields, "n", int)
    fields_of.within(choices, "n", low=1, high=MAX_CHOICES)
    return 1 if choices is None else choices


def _logit_bias(fields: Fields) -> tuple[tuple[int, float], ...]:
    biases: dict[str, float] = fields_of.optional(fields, "logit_bias", dict[str, float]) or {}
    if len(biases) > MAX_LOGIT_BIAS_TOKENS:
        raise InvalidRequest(f"logit_bias: more than {MAX_LOGIT_BIAS_TOKENS} tokens")
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and len(token) < 11 and int(token) <= MAX_TOKEN_ID):
            raise InvalidRequest(f"logit_bias: `{token[:MAX_HINT_CHARS]}` is not a token id")
        fields_of.within(bias, f"logit_bias.{token}", low=-100, high=100)
    return tuple((int(token), bias) for token, bias in biases.items())
