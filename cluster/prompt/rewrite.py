"""Blocks of a conversation rewritten one by one, those inside of tool results too."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from cluster.prompt.conversation import ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.prompt.conversation import Block, Conversation, Message

    Rewrite = Callable[[Block, str], Block]

Kept = TypeVar("Kept", bound="Block")


def rewrite_blocks(conversation: Conversation, rewrite: Callable[[Block, str], Block]) -> Conversation:
    """Every block of every message replaced by what `rewrite` makes of it and its path. What does not change is shared.

    A tool result keeps its place; its content is rewritten, and only text may come of it.
    """
    messages = tuple(_message(message, rewrite) for message in conversation.messages)
    if all(new is old for new, old in zip(messages, conversation.messages, strict=True)):
        return conversation
    return replace(conversation, messages=messages)


def _message(message: Message, rewrite: Rewrite) -> Message:
    blocks = _blocks(message.blocks, f"{message.path}.content", rewrite)
    return message if blocks is message.blocks else replace(message, blocks=blocks)


def _blocks(blocks: Sequence[Kept], path: str, rewrite: Rewrite) -> Sequence[Block]:
    rewritten = tuple(_block(block, f"{path}[{i}]", rewrite) for i, block in enumerate(blocks))
    return blocks if all(new is old for new, old in zip(rewritten, blocks, strict=True)) else rewritten


def _block(block: Block, path: str, rewrite: Rewrite) -> Block:
    if not isinstance(block, ToolResult):
        return rewrite(block, path)
    content = _blocks(block.content, f"{path}.content", rewrite)
    return block if content is block.content else replace(block, content=content)
