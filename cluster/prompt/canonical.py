"""The canonical form of a conversation: what does not change the meaning must not change the tokens.

Rules run in this order; each is one function from conversation to conversation that says what it changed:

attribution_line    volatile lines leave the system text (why: cluster/prompt/preamble.py)
volatile_line       the same for the patterns an operator added
equivalent_forms    a message without content is no message, a system text without text is none
leading_system      system messages before the first answer belong to the system text: there they stand at the same
                    place in every later turn, and in every session on the same repository

None of them touches the text of users or assistants, and all are idempotent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from cluster.prompt.conversation import Change, Conversation, Message, Text
from cluster.prompt.preamble import ATTRIBUTION_LINE, LinePattern, compile_lines
from router.limits import MAX_CHANGE_CHARS, MAX_CHANGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Rule = Callable[[Conversation], tuple[Conversation, tuple[Change, ...]]]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The switches of one model. `volatile_lines` are RE2 patterns for further lines of system text to remove."""

    attribution_line: bool = True
    volatile_lines: tuple[str, ...] = ()
    equivalent_forms: bool = True
    leading_system: bool = True


class Canonicaliser:
    """The enabled rules, compiled once. Raises `ModelUnusable` for a pattern that cannot be used."""

    def __init__(self, rules: Rules) -> None:
        self._rules: list[Rule] = []
        if rules.attribution_line:
            self._rules.append(_line_rule("attribution_line", [LinePattern(ATTRIBUTION_LINE)]))
        if rules.volatile_lines:
            self._rules.append(_line_rule("volatile_line", compile_lines(rules.volatile_lines)))
        if rules.equivalent_forms:
            self._rules.append(equivalent_forms)
        if rules.leading_system:
            self._rules.append(leading_system)

    def apply(self, conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
        """The canonical conversation and what was changed: a change per rule and block, in order, up to `MAX_CHANGES`.

        Pure; O(system text + messages).
        """
        changes: list[Change] = []
        for rule in self._rules:
            conversation, made = rule(conversation)
            changes += made
        return conversation, tuple(changes[:MAX_CHANGES])


def equivalent_forms(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """Drop messages without blocks and empty blocks of system text. (A string is one text block since parsing.)"""
    changes: list[Change] = []
    system = _nonempty(conversation.system, "system", changes)
    messages: list[Message] = []
    for message in conversation.messages:
        blocks = message.blocks
        if message.role == "system":
            blocks = _nonempty(blocks, f"{message.path}.content", changes)
        if blocks:
            messages.append(message if blocks is message.blocks else replace(message, blocks=blocks))
        else:
            changes.append(_dropped(message.path))
    if not changes:
        return conversation, ()
    return replace(conversation, system=system, messages=tuple(messages)), tuple(changes)


def leading_system(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """Move system messages that precede the first assistant turn behind the system text, in their order."""
    head = _head_length(conversation)
    moved = dict.fromkeys(i for i in range(head) if conversation.messages[i].role == "system")
    if not moved:
        return conversation, ()
    blocks = tuple(block for i in moved for block in conversation.messages[i].blocks)
    messages = tuple(message for i, message in enumerate(conversation.messages) if i not in moved)
    changes = tuple(_moved(conversation.messages[i]) for i in moved)
    return replace(conversation, system=conversation.system + blocks, messages=messages), changes


def _line_rule(name: str, patterns: Sequence[LinePattern]) -> Rule:
    def rule(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
        changes: list[Change] = []
        system = _strip_blocks(conversation.system, "system", changes)
        messages = list(conversation.messages)
        for i in range(_head_length(conversation)):
            if messages[i].role == "system":
                blocks = _strip_blocks(messages[i].blocks, f"{messages[i].path}.content", changes)
                messages[i] = replace(messages[i], blocks=blocks)
        if not changes:
            return conversation, ()
        return replace(conversation, system=system, messages=tuple(messages)), tuple(changes)

    def _strip_blocks(blocks: tuple[Text, ...], path: str, changes: list[Change]) -> tuple[Text, ...]:
        return tuple(
            kept for i, block in enumerate(blocks) if (kept := _strip_block(block, f"{path}[{i}]", changes)) is not None
        )

    def _strip_block(block: Text, path: str, changes: list[Change]) -> Text | None:
        text = block.text
        lines: list[str] = []
        for pattern in patterns:
            text, removed = pattern.strip(text)
            lines.append(removed)
        if text is block.text:
            return block
        changes.append(Change(name, path, "".join(lines)[:MAX_CHANGE_CHARS], ""))
        return Text(text) if text.strip() else None  # blank lines around the removed one are no instructions

    return rule


def _head_length(conversation: Conversation) -> int:
    """How many messages precede the first assistant turn. One without content is none."""
    turns = (i for i, message in enumerate(conversation.messages) if message.role == "assistant" and message.blocks)
    return next(turns, len(conversation.messages))


def _nonempty(blocks: tuple[Text, ...], path: str, changes: list[Change]) -> tuple[Text, ...]:
    empty = [i for i, block in enumerate(blocks) if not block.text]
    changes.extend(_dropped(f"{path}[{i}]") for i in empty)
    return tuple(block for block in blocks if block.text) if empty else blocks


def _dropped(path: str) -> Change:
    return Change("equivalent_forms", path, "", "")


def _moved(message: Message) -> Change:
    text = "".join(block.text[:MAX_CHANGE_CHARS] for block in message.blocks)[:MAX_CHANGE_CHARS]
    return Change("leading_system", message.path, text, text)
