"""What blocks that are not text say in words, where only words can stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.prompt.conversation import Media, Text, Thinking, ToolCall, ToolReference, ToolRemoval, ToolResult
from cluster.prompt.json_text import dumps, function_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.prompt.conversation import Block, Tool


def plain_text(block: Block) -> str:
    """Depends on the block alone. Nothing for thinking, calls and results: a prompt has other places for them."""
    match block:
        case Text(text):
            return text
        case Media(kind):
            return f"[{kind} left out: this model reads text only]"
        case ToolReference(name):
            return name
        case ToolRemoval(name):
            return f"The tool {name} can no longer be called."
        case Thinking() | ToolCall() | ToolResult():
            return ""


def description_of(tool: Tool) -> str:
    """A tool in the middle of a conversation: name, description, and parameters as JSON schema."""
    lines = [f"The tool {tool.name} can be called from here on.", tool.description]
    return "\n".join([*filter(None, lines), f"Parameters: {dumps(function_of(tool)['parameters'])}"])


def join_lines(texts: Iterable[str]) -> str:
    """Every text starts on a line of its own; one that ends its line needs no further break."""
    parts: list[str] = []
    for text in texts:
        if parts and parts[-1] and not parts[-1].endswith("\n"):
            parts.append("\n")
        parts.append(text)
    return "".join(parts)
