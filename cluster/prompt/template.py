"""From a canonical conversation to prompt text and tokens: what core needs from a model, and how blocks become turns.

`ChatTemplate` and `Encoder` are the model's own; their adapters live in cluster/models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from cluster.prompt.conversation import Thinking, ToolCall, ToolResult
from cluster.prompt.plain import join_lines, plain_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cluster.prompt.conversation import Conversation, Message, Tool

Ending = Literal["open_turn", "continue_last", "closed"]


class Turn(NamedTuple):
    """One message as chat templates know it. `calls` and `reasoning` are an assistant's; a tool's turn answers the call
    `call_id` of the tool `name`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""


class Form(NamedTuple):
    """How a template reads turns: arguments of calls as an object (`text` where they are none), or always as JSON text;
    whether a turn of calls alone has content None rather than an empty text; whether contents are lists of parts."""

    arguments: Literal["object", "text"] = "object"
    null_content: bool = False
    content_parts: bool = False


class Ask(NamedTuple):
    """What a prompt is rendered for, beside its turns.

    `open_turn` ends with the header of a new assistant turn; `continue_last` ends inside the last turn, so that the
    model goes on with it; `closed` ends with the last turn: the part that the next request extends. `keep_thinking`
    asks for the reasoning of past turns; `effort` is the client's word, empty for none.
    """

    ending: Ending = "open_turn"
    tools: tuple[Tool, ...] = ()
    thinking: Literal["default", "on", "off"] = "default"
    effort: str = ""
    keep_thinking: bool = True
    form: Form = Form()


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


def render(conversation: Conversation, template: ChatTemplate, *, ending: Ending | None = None) -> str:
    """The prompt, ending as asked, else as `ending_of` says."""
    ask = Ask(
        ending=ending or ending_of(conversation),
        tools=listed_tools(conversation),
        thinking=conversation.thinking,
        effort=conversation.effort,
    )
    return template.render(list(turns_of(conversation)), ask)


def ending_of(conversation: Conversation) -> Ending:
    """A last assistant message without calls is continued where the protocol means that (Messages), else answered."""
    last = conversation.messages[-1] if conversation.messages else None
    if conversation.api != "messages" or last is None or last.role != "assistant":
        return "open_turn"
    return "open_turn" if any(isinstance(block, ToolCall) for block in last.blocks) else "continue_last"


def listed_tools(conversation: Conversation) -> tuple[Tool, ...]:
    """The tools that the prompt lists, in the client's order: all but deferred ones."""
    return tuple(tool for tool in conversation.tools if not tool.deferred)


def turns_of(conversation: Conversation) -> Iterator[Turn]:
    """System text first, when there is any, then a turn or more of every message; every block finds its place.

    An assistant's texts were one text when they were generated; so were its thoughts, and its calls keep their order.
    Of a user message the tool results come first, each a turn of its own, then everything else as one text.
    """
    if conversation.system:
        yield Turn("system", join_lines(block.text for block in conversation.system))
    names: dict[str, str] = {}
    for message in conversation.messages:
        if message.role == "assistant":
            turn = _assistant_turn(message)
            names |= {call.id: call.name for call in turn.calls}
            yield turn
        else:
            yield from _other_turns(message, names)


def chars_of(conversation: Conversation) -> int:
    """Length of all that is rendered of a conversation, before a template adds its own; of prompts the longest."""
    turns = sum(
        len(turn.content) + len(turn.reasoning) + sum(len(call.name) + len(call.arguments) for call in turn.calls)
        for turn in turns_of(conversation)
    )
    tools = sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in listed_tools(conversation))
    prompts = max((len(prompt) for prompt in conversation.prompts if isinstance(prompt, str)), default=0)
    return turns + tools + prompts


def _assistant_turn(message: Message) -> Turn:
    thoughts = [block.text for block in message.blocks if isinstance(block, Thinking)]
    calls = tuple(block for block in message.blocks if isinstance(block, ToolCall))
    return Turn("assistant", "".join(map(plain_text, message.blocks)), join_lines(thoughts), calls)


def _other_turns(message: Message, names: dict[str, str]) -> Iterator[Turn]:
    results = [block for block in message.blocks if isinstance(block, ToolResult)]
    for result in results:
        yield Turn("tool", _result_text(result), call_id=result.id, name=names.get(result.id, ""))
    if len(results) < len(message.blocks):
        said = (plain_text(block) for block in message.blocks if not isinstance(block, ToolResult))
        yield Turn("system" if message.role == "system" else "user", join_lines(said))


def _result_text(result: ToolResult) -> str:
    """Templates know no failed result: a failure whose first line does not say so is marked, by its own text alone."""
    text = join_lines(map(plain_text, result.content))
    if result.is_error and "error" not in text.partition("\n")[0].lower():
        return f"Error: {text}"
    return text
