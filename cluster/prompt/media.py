"""Rule 8: images, documents and sounds for a model that reads text only.

An old image must not end a session, so in the history and in tool results a fixed text takes its place. Only a newest
user message that holds one itself is refused: its author can say it in words, or ask another model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.prompt.changes import Changes
from cluster.prompt.conversation import Media, Text
from cluster.prompt.plain import plain_text
from cluster.prompt.rewrite import rewrite_blocks
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from cluster.prompt.conversation import Block, Change, Conversation


def media(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """Put a text in place of what cannot be read. Raises `InvalidRequest` for the newest user message. Linear."""
    newest = next((message for message in reversed(conversation.messages) if message.role == "user"), None)
    for i, block in enumerate(newest.blocks if newest else ()):
        if isinstance(block, Media):
            raise _unreadable(f"{newest.path}.content[{i}]" if newest else "messages", block)
    changes = Changes("media")

    def in_words(block: Block, path: str) -> Block:
        if not isinstance(block, Media):
            return block
        changes.note(path, before=block.label or block.kind, after=plain_text(block))
        return Text(plain_text(block))

    return rewrite_blocks(conversation, in_words), changes.all()


def media_refused(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """Instead of `media` where that is switched off. Raises `InvalidRequest` for the first block anywhere."""

    def refuse(block: Block, path: str) -> Block:
        if isinstance(block, Media):
            raise _unreadable(path, block)
        return block

    return rewrite_blocks(conversation, refuse), ()


def _unreadable(path: str, block: Media) -> InvalidRequest:
    return InvalidRequest(
        f"{path}: this model reads text only; describe the {block.kind} in words or choose a model that takes it"
    )
