"""From a canonical conversation to prompt text and tokens: what core needs from a model, and how blocks join.

`ChatTemplate` and `Encoder` are the model's own; their adapters live in cluster/models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cluster.prompt.conversation import Conversation, Text


class Turn(NamedTuple):
    """One message as chat templates know it."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatTemplate(Protocol):
    """The model's own template, never a client's."""

    def render(self, turns: Sequence[Turn], *, ending: Literal["open_turn", "continue_last"]) -> str:
        """The prompt text. `open_turn` ends with the header of a new assistant turn; `continue_last` ends inside the
        last turn, so that the model goes on with it. Raises `InvalidRequest` when the template refuses the turns."""
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
    return template.render(turns, ending="continue_last" if continued else "open_turn")


def turns_of(conversation: Conversation) -> Iterable[Turn]:
    """System text first, when there is any. Blocks of an assistant turn were one text when they were generated."""
    if conversation.system:
        yield Turn("system", join_lines(conversation.system))
    for message in conversation.messages:
        if message.role == "assistant":
            yield Turn("assistant", "".join(block.text for block in message.blocks))
        else:
            yield Turn(message.role, join_lines(message.blocks))


def join_lines(blocks: Sequence[Text]) -> str:
    """Every block starts on a line of its own; one that ends its line needs no further break."""
    parts: list[str] = []
    for block in blocks:
        if parts and parts[-1] and not parts[-1].endswith("\n"):
            parts.append("\n")
        parts.append(block.text)
    return "".join(parts)
