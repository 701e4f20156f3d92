"""OpenAI Responses: request bodies to conversations, and what one conversation takes over from another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from cluster.api import body as fields_of
from cluster.api import sampling
from cluster.api.responses_items import Item, turns_of
from cluster.api.responses_tools import choice_of, format_of, tools_of
from cluster.prompt.conversation import Conversation, Hints, Message, Text
from router.errors import InvalidRequest, UnknownResponse
from router.limits import MAX_ECHOED_BYTES, MAX_HINT_CHARS, MAX_IGNORED_FIELDS, MAX_MESSAGES, MAX_TOP_LOGPROBS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.api.body import Fields
    from cluster.api.dialect import Answer
    from cluster.api.response_memory import ResponseMemory

# Fields that would change the answer, with the values that ask for nothing.
UNSERVED: Final = sampling.UNSERVED | {"background": (False,), "conversation": (), "n": (1,), "prompt": ()}
# What a response object repeats of its request, and what it says where the request says nothing.
ECHOED: Final[dict[str, Any]] = {
    "background": False, "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {},
    "parallel_tool_calls": True, "previous_response_id": None, "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None}, "safety_identifier": None, "service_tier": "default", "store": True,
    "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_logprobs": 0,
    "top_p": 1.0, "truncation": "disabled", "user": None,
}  # fmt: skip
KNOWN: Final = fields_of.Known(
    sampling.INERT
    | sampling.SAMPLING_FIELDS
    | UNSERVED.keys()
    | ECHOED.keys()
    | {"client_metadata", "include", "input", "model", "stream", "stream_options"}
)
_FOLLOWED_INCLUDES: Final = frozenset({"reasoning.encrypted_content", "message.output_text.logprobs"})
_BEFORE: Final = "previous_response_id"


class Asked(msgspec.Struct, omit_defaults=True):
    """What replies want to know: whether the system text begins with `instructions`, whether reasoning comes sealed,
    and fields to repeat."""

    instructed: bool = False
    sealed: bool = False
    fields: dict[str, Any] = {}


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


def parse_responses(body: bytes) -> Conversation:
    """A `/v1/responses` body. Raises `InvalidRequest` or `RequestTooLarge`."""
    fields, unknown = fields_of.read_fields(body, KNOWN)
    fields_of.refuse(fields, UNSERVED)
    previous: str = fields_of.optional(fields, "previous_response_id", str) or ""
    instructions: str = fields_of.optional(fields, "instructions", str) or ""
    include: list[str] = fields_of.optional(fields, "include", list[str]) or []
    reasoning: _Reasoning = fields_of.optional(fields, "reasoning", _Reasoning) or _Reasoning()
    turns, tools = turns_of(_items(fields, needed=not previous)), tools_of(fields)
    choice, form = choice_of(fields, tools.tools), format_of(fields)
    asked = Asked(bool(instructions), "reasoning.encrypted_content" in include, _echoed(fields))
    ignored = (*turns.ignored, *tools.ignored, *choice.ignored, *form.ignored, *_unfollowed(fields, reasoning, include))
    effort = reasoning.effort or ""
    conversation = Conversation(
        api="responses",
        model=fields_of.required(fields, "model", str),
        system=(Text(instructions),) if instructions else (),
        messages=turns.messages,
        tools=tools.tools,
        tool_choice=choice.choice,
        thinking="off" if effort == "none" else "default",
        effort=effort if effort in sampling.EFFORTS else "",
        output_format=form.form,
        limits=sampling.limits_of(fields, max_tokens=_max_tokens(fields), logprobs=_logprobs(fields, include)),
        hints=Hints(
            session=sampling.session_of(fields),
            ignored=(*ignored, *unknown)[:MAX_IGNORED_FIELDS],
            previous_response=previous[:MAX_HINT_CHARS],
            store=fields_of.optional(fields, "store", bool) is not False,
            reply=msgspec.json.encode(asked),
        ),
        stream=bool(fields_of.optional(fields, "stream", bool)),
    )
    return conversation if previous else _settled(conversation)


def asked_of(conversation: Conversation) -> Asked:
    """What the parser noted for replies."""
    return msgspec.json.decode(conversation.hints.reply or b"{}", type=Asked)


def resumed(conversation: Conversation, memory: ResponseMemory, tenant: str) -> Conversation:
    """The conversation behind what it continues, if it continues a response. Raises `UnknownResponse`."""
    previous = conversation.hints.previous_response
    if not previous:
        return conversation
    before = memory.get(tenant, previous)
    if before is None:
        raise UnknownResponse(f"previous_response_id: `{previous}` is not remembered; send the whole input instead")
    earlier = tuple(replace(message, path=f"{_BEFORE}[{i}]") for i, message in enumerate(before))
    return _settled(replace(conversation, messages=earlier + conversation.messages))


def remember(conversation: Conversation, answer: Answer, memory: ResponseMemory, *, tenant: str, suffix: str) -> None:
    """Keep what a request that continues this response begins with: all but `instructions`, which are said anew.

    `suffix` is of the response's id.
    """
    orders = conversation.system[asked_of(conversation).instructed :]
    head = (Message("system", orders, _BEFORE),) if orders else ()
    said = Message("assistant", answer.blocks, _BEFORE)
    memory.put(tenant, response_id(suffix), (*head, *conversation.messages, said))


def response_id(suffix: str) -> str:
    """The id of the response to a request."""
    return f"resp_{suffix}"


def _settled(conversation: Conversation) -> Conversation:
    """Instructing messages at the beginning belong to the system text."""
    messages = conversation.messages
    count = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    if not count:
        return conversation
    orders = tuple(block for message in messages[:count] for block in message.blocks if isinstance(block, Text))
    return replace(conversation, system=conversation.system + orders, messages=messages[count:])


def _items(fields: Fields, *, needed: bool) -> list[Item]:
    """A text is a user's message. Only what continues a response may say nothing."""
    fields_of.check_length(fields.get("input"), "input", most=MAX_MESSAGES, of="items")
    said: str | list[Item] | None = fields_of.optional(fields, "input", str | list[Item])
    if isinstance(said, str):
        return [Item(role="user", content=said)]
    if needed and not said:
        raise InvalidRequest("input: field required" if said is None else "input: at least one item is required")
    return said or []


def _max_tokens(fields: Fields) -> int | None:
    value: int | None = fields_of.optional(fields, "max_output_tokens", int)
    if value is not None and value < 1:
        raise InvalidRequest("max_output_tokens: must be at least 1")
    return value


def _logprobs(fields: Fields, include: list[str]) -> int | None:
    """How many alternatives of each token, None for no log probabilities at all."""
    alternatives: int | None = fields_of.optional(fields, "top_logprobs", int)
    fields_of.within(alternatives, "top_logprobs", low=0, high=MAX_TOP_LOGPROBS)
    return (alternatives or 0) if "message.output_text.logprobs" in include or alternatives else None


def _unfollowed(fields: Fields, reasoning: _Reasoning, include: list[str]) -> Iterable[str]:
    """Names of wishes that nobody follows here: reasoning is shown whole, never summed up; no item is ever left out."""
    if reasoning.effort not in sampling.EFFORTS | {"none", None}:
        yield "reasoning.effort"
    if reasoning.summary or reasoning.generate_summary:
        yield "reasoning.summary"
    if fields_of.optional(fields, "truncation", str) == "auto":
        yield "truncation"
    if not _FOLLOWED_INCLUDES.issuperset(include):
        yield "include"


def _echoed(fields: Fields) -> dict[str, Any]:
    """Small fields as they were sent. Large ones, such as an agent's tools, would be sent back three times a turn to a
    client that knows them."""
    raws = {name: fields[name] for name in ECHOED if name in fields}
    return {
        name: fields_of.decode(raw, Any, name)
        for name, raw in raws.items()
        if memoryview(raw).nbytes <= MAX_ECHOED_BYTES and bytes(raw) != b"null"
    }
