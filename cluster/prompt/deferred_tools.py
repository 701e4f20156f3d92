"""Rule 4: a deferred tool is not listed; it is described where the conversation names it.

Coding agents load tools on demand. Listed, a loaded tool would stand in the middle of the head, and all after it would
be cold; described in the tool result that found it, it extends the prompt. `Conversation.tools` keeps deferred tools,
for parsers and `tool_choice`; `cluster.prompt.template.listed_tools` leaves them out of the prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from cluster.prompt.changes import Changes
from cluster.prompt.conversation import Text, ToolReference, ToolRemoval
from cluster.prompt.plain import description_of, plain_text
from cluster.prompt.rewrite import rewrite_blocks

if TYPE_CHECKING:
    from cluster.prompt.conversation import Block, Change, Conversation


def deferred_tools(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """Hide deferred tools; put a text in place of every reference and removal. Linear.

    A reference to an unknown tool becomes its name. The text depends on the tool alone: the same in every turn.
    """
    changes = Changes("deferred_tools")
    hidden = ", ".join(tool.name for tool in conversation.tools if tool.deferred)
    if hidden:
        changes.note("tools", before=hidden, after="")
    described = _Descriptions(conversation)

    def in_words(block: Block, path: str) -> Block:
        if not isinstance(block, ToolReference | ToolRemoval):
            return block
        text = described.of(block) if isinstance(block, ToolReference) else plain_text(block)
        changes.note(path, before=block.name, after=text)
        return Text(text)

    return rewrite_blocks(conversation, in_words), changes.all()


def all_tools_listed(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """Instead of `deferred_tools` where that is switched off: deferral is forgotten."""
    changes = Changes("all_tools_listed")
    for i, tool in enumerate(conversation.tools):
        if tool.deferred:
            changes.note(f"tools[{i}]", before=tool.name, after=tool.name)
    if not changes:
        return conversation, ()
    tools = tuple(replace(tool, deferred=False) for tool in conversation.tools)
    return replace(conversation, tools=tools), changes.all()


class _Descriptions:
    """One text per tool, however often it is referred to: a flood of references shares it."""

    def __init__(self, conversation: Conversation) -> None:
        self._tools = {tool.name: tool for tool in conversation.tools}
        self._texts: dict[str, str] = {}

    def of(self, reference: ToolReference) -> str:
        tool = self._tools.get(reference.name)
        if tool is None:
            return plain_text(reference)
        if tool.name not in self._texts:
            self._texts[tool.name] = description_of(tool)
        return self._texts[tool.name]
