"""The one internal form of a request, whatever protocol it came in.

Protocol modules build it, canonical rules rewrite it, the template renders it. It holds only what can reach the prompt
or the sampler: ids, cache marks, betas and metadata have been left behind (they travel in `Hints`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["system", "user", "assistant"]
Api = Literal["messages", "chat"]


class Text(msgspec.Struct, frozen=True):
    """A run of text. The only kind of block served so far."""

    text: str


class Message(msgspec.Struct, frozen=True):
    """One turn. `blocks` keep the client's order; a string body is one `Text`."""

    role: Role
    blocks: tuple[Text, ...]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the client asked of the sampler; `max_tokens` None means as many as fit."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class Hints(msgspec.Struct, frozen=True, kw_only=True):
    """What may help routing or logs and never reaches the prompt. `ignored` are names of unknown body fields."""

    session: str = ""
    client: str = ""
    ignored: tuple[str, ...] = ()


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """System text (one block list, maybe empty), then the turns in the client's order."""

    api: Api
    model: str
    system: tuple[Text, ...] = ()
    messages: tuple[Message, ...] = ()
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
