"""The one internal form of a request, whatever protocol it came in.

Protocol modules build it, canonical rules rewrite it, the template renders it. It holds only what can reach the prompt
or the sampler: ids, cache marks and metadata have been left behind (what helps routing travels in `Hints`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant"]
Api = Literal["messages", "chat", "completions", "responses"]


class Text(msgspec.Struct, frozen=True, tag=True):
    """A run of text."""

    text: str


class Thinking(msgspec.Struct, frozen=True, tag=True):
    """Reasoning of an assistant turn, as the client returned it."""

    text: str


class ToolCall(msgspec.Struct, frozen=True, tag=True):
    """An assistant's call. `arguments` is JSON text with the client's key order, normally an object."""

    id: str
    name: str
    arguments: str


class Media(msgspec.Struct, frozen=True, tag=True):
    """An image, a document or a sound that is not text; `label` is what kind, such as `image/png`. Never its bytes."""

    kind: Literal["image", "document", "audio"]
    label: str = ""


class ToolReference(msgspec.Struct, frozen=True, tag=True):
    """The name of a deferred tool, standing where its description is to be read."""

    name: str


class ToolRemoval(msgspec.Struct, frozen=True, tag=True):
    """A tool that is no longer to be called, said where the client said it."""

    name: str


ResultBlock = Text | Media | ToolReference


class ToolResult(msgspec.Struct, frozen=True, tag=True):
    """What a tool answered; `id` is the call's. It stands in a user message."""

    id: str
    content: tuple[ResultBlock, ...]
    is_error: bool = False


Block = Text | Thinking | ToolCall | Media | ToolReference | ToolRemoval | ToolResult


class Message(msgspec.Struct, frozen=True):
    """One turn. `blocks` keep the client's order; a string body is one `Text`.

    `path` says where it stood in the request (`messages[3]`); it stays when earlier messages go.
    """

    role: Role
    blocks: tuple[Block, ...]
    path: str = ""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call. `parameters` is its JSON schema as text, keys in the client's order.

    A `deferred` tool is known but not listed: only a `ToolReference` shows it. Replies need to know that `name` begins
    with the client's `namespace`, and that a `free_form` tool's one parameter `input` is plain text to the client.
    """

    name: str
    description: str = ""
    parameters: str = "{}"
    deferred: bool = False
    strict: bool = False
    namespace: str = ""
    free_form: bool = False


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the client allows: no call, any number, at least one, or the one named. `parallel` allows several."""

    mode: Literal["none", "auto", "any", "tool"] = "auto"
    name: str = ""
    parallel: bool = True


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The answer's text must be JSON that fits `schema` (JSON text)."""

    schema: str


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the client asked of the sampler; `max_tokens` None means as many as fit, 0 only fills the cache.

    `logprobs` None means none, else how many alternatives of each token. `choices` answers are wanted.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    choices: int = 1


class Hints(msgspec.Struct, frozen=True, kw_only=True):
    """What may help routing or logs and never reaches the prompt. `ignored` are names of unknown body fields and of
    wishes that are not followed. `previous_response` is the id of a remembered response that this one continues;
    `store` asks to remember this one. `reply` is what the protocol's replies want to know of the request, as its parser
    has encoded it."""

    session: str = ""
    client: str = ""
    ignored: tuple[str, ...] = ()
    previous_response: str = ""
    store: bool = False
    reply: bytes = b""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """System text (one block list, maybe empty), then the turns in the client's order.

    `hide_thinking`: the client is told that the model thought, not what.
    Of Completions there are `prompts` instead: texts, or tokens as packed u32, little-endian; they are never changed.
    """

    api: Api
    model: str
    system: tuple[Text, ...] = ()
    messages: tuple[Message, ...] = ()
    prompts: tuple[str | bytes, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    thinking: Literal["default", "on", "off"] = "default"
    hide_thinking: bool = False
    effort: str = ""
    output_format: OutputFormat | None = None
    limits: Limits = Limits()
    hints: Hints = Hints()
    stream: bool = False
    stream_usage: bool = False


class Change(msgspec.Struct, frozen=True):
    """One thing a canonical rule did: where (`system[0]`), and the beginning of the text before and after."""

    rule: str
    path: str
    before: str
    after: str
