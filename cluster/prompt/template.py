"""From a canonical conversation to prompt text and tokens: what core needs from a model, and how blocks join.

`ChatTemplate` and `Encoder` are the model's own; their adapters live in cluster/models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from cluster.prompt.conversation import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cluster.prompt.conversation import Conversation, Tool, ToolCall


class Turn(NamedTuple):
    """One message as chat templates know it. `calls` and `reasoning` are an assistant's; a tool's turn answers the call
    `call_id` of the tool `name`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""


class Ask(NamedTuple):
    """What a prompt is rendered for, beside its turns.

    `open_turn` ends with the header of a new assistant turn; `continue_last` ends inside the last turn, so that the
    model goes on with it; `closed` ends with the last turn: the part that the next request extends.
    """

    ending: Literal["open_turn", "continue_last", "closed"] = "open_turn"
    tools: tuple[Tool, ...] = ()
    thinking: Literal["default", "on", "off"] = "default"


class ChatTemplate(Protocol):
    """The model's own template, never a client's."""

    def render(self, turns: Sequence[Turn], ask: Ask) -> str:
        """The prompt text. Raises `InvalidRequest` when the template refuses the turns."""
        ...


class Encoder(Protocol):
    """The model's tokenizer, without the tokens it would add around a text: the template has written those."""

    def encode_batch(self, texts: Sequence[str]) -> list[bytes]:
        """Tokens of each text, packed u32, little-endian. Releases the interpreter lock; may run in a thread."""
        ...


def render(conversation: Conversation, template: ChatTemplate) -> str:
    """The prompt. A last assistant message is continued where the protocol means that (Messages), else answered."""
    turns = list(turns_of(conversation))
    continued = conversation.api == "messages" and bool(turns) and turns[-1].role == "assistant"
    ending: Literal["open_turn", "continue_last"] = "continue_last" if continued else "open_turn"
    return template.render(turns, Ask(ending, conversation.tools, conversation.thinking))


def turns_of(conversation: Conversation) -> Iterable[Turn]:
    """System text first, when there is any. Blocks of an assistant turn were one text when they were generated."""
    if conversation.system:
        yield Turn("system", join_lines(conversation.system))
    for message in conversation.messages:
        if message.role == "assistant":
            yield Turn("assistant", "".join(block.text for block in message.blocks if isinstance(block, Text)))
        else:
            yield Turn(message.role, join_lines([block for block in message.blocks if isinstance(block, Text)]))


def join_lines(blocks: Sequence[Text]) -> str:
    """Every block starts on a line of its own; one that ends its line needs no further break."""
    parts: list[str] = []
    for block in blocks:
        if parts and parts[-1] and not parts[-1].endswith("\n"):
            parts.append("\n")
        parts.append(block.text)
    return "".join(parts)
