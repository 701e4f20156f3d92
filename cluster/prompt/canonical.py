"""The canonical form of a conversation: what does not change the meaning must not change the tokens.

Rules run in this order; each is one function from conversation to conversation that says what it changed:

attribution_line    volatile lines leave the system text (why: cluster/prompt/preamble.py)
volatile_line       the same for the patterns an operator added
equivalent_forms    a message without content is no message, a system text without text is none
deferred_tools      tools loaded on demand are described where they are named (cluster/prompt/deferred_tools.py)
media               what a text-only model cannot read has a text in its place (cluster/prompt/media.py)
leading_system      system messages before the first answer belong to the system text
inline_system       later ones become user text in place (both: cluster/prompt/inline_system.py)

Tools keep their order and schemas their keys; thinking stays (`keep_thinking` is read where the template is asked).
References and media turn into text before system messages move, for system text is text only. No rule touches the text
of users or assistants, and all are idempotent: a canonical conversation stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from cluster.prompt.changes import Changes
from cluster.prompt.conversation import Conversation, Message, Text
from cluster.prompt.deferred_tools import all_tools_listed, deferred_tools
from cluster.prompt.inline_system import (
    InlineSystem,
    head_length,
    leading_system,
    merged_system,
    reminders_in_place,
    results_first,
)
from cluster.prompt.media import media, media_refused
from cluster.prompt.preamble import ATTRIBUTION_LINE, LinePattern, compile_lines
from router.limits import MAX_CHANGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.prompt.changes import Rule
    from cluster.prompt.conversation import Block, Change


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The switches of one model, named as in the configuration.

    `volatile_lines` are RE2 patterns for further lines of system text to remove. `inline_system` says what becomes of
    system messages after the first answer: user text in place, nothing (`native`, for templates that take them), or
    system text at the head (`merge`). `keep_thinking` asks the template to keep reasoning of past turns. `exact_turns`
    puts back the tokens that were generated for a turn (cluster/prompt/exact_turns.py), `literal_marks` keeps special
    tokens that a text spells out text (cluster/prompt/literal.py): both happen when rendering.
    """

    strip_anthropic_preamble: bool = True
    volatile_lines: tuple[str, ...] = ()
    equivalent_forms: bool = True
    deferred_tools: bool = True
    media_placeholders: bool = True
    leading_system: bool = True
    inline_system: InlineSystem = "user"
    keep_thinking: bool = True
    exact_turns: bool = True
    literal_marks: bool = True


class Canonicaliser:
    """The enabled rules, compiled once. Raises `ModelUnusable` for a pattern that cannot be used."""

    def __init__(self, rules: Rules) -> None:
        self._rules: list[Rule] = []
        to_be_head = len if rules.inline_system == "merge" else head_length
        if rules.strip_anthropic_preamble:
            self._rules.append(_line_rule("attribution_line", [LinePattern(ATTRIBUTION_LINE)], to_be_head))
        if rules.volatile_lines:
            self._rules.append(_line_rule("volatile_line", compile_lines(rules.volatile_lines), to_be_head))
        if rules.equivalent_forms:
            self._rules.append(equivalent_forms)
        self._rules.append(deferred_tools if rules.deferred_tools else all_tools_listed)
        self._rules.append(media if rules.media_placeholders else media_refused)
        if rules.leading_system:
            self._rules.append(leading_system)
        in_place = {"user": reminders_in_place, "native": results_first, "merge": merged_system}
        self._rules.append(in_place[rules.inline_system])

    def apply(self, conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
        """The canonical conversation and what was changed: a change per rule and block, in order, up to `MAX_CHANGES`.

        Pure; O(system text + messages + tools). Raises `InvalidRequest` for what the model cannot read.
        """
        changes: list[Change] = []
        for rule in self._rules:
            conversation, made = rule(conversation)
            changes += made
        return conversation, tuple(changes[:MAX_CHANGES])


def equivalent_forms(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """Drop messages without blocks and empty blocks of system text. (A string is one text block since parsing.)"""
    changes = Changes("equivalent_forms")
    system = tuple(_nonempty(conversation.system, "system", changes))
    messages: list[Message] = []
    for message in conversation.messages:
        blocks = message.blocks
        if message.role == "system":
            blocks = tuple(_nonempty(blocks, f"{message.path}.content", changes))
        if blocks:
            messages.append(message if blocks == message.blocks else replace(message, blocks=blocks))
        else:
            changes.note(message.path, before="", after="")
    if not changes:
        return conversation, ()
    return replace(conversation, system=system, messages=tuple(messages)), changes.all()


def _line_rule(name: str, patterns: Sequence[LinePattern], head: Callable[[Sequence[Message]], int]) -> Rule:
    """Strips the system text, and system messages among the first `head` of all: those that will belong to it."""

    def rule(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
        changes = Changes(name)
        system = strip_blocks(conversation.system, "system", changes)
        messages = list(conversation.messages)
        for i in range(head(messages)):
            if messages[i].role == "system":
                blocks = strip_blocks(messages[i].blocks, f"{messages[i].path}.content", changes)
                messages[i] = replace(messages[i], blocks=blocks)
        if not changes:
            return conversation, ()
        return replace(conversation, system=system, messages=tuple(messages)), changes.all()

    def strip_blocks(blocks: Sequence[Block], path: str, changes: Changes) -> tuple[Block, ...]:
        kept = (strip_block(block, f"{path}[{i}]", changes) for i, block in enumerate(blocks))
        return tuple(block for block in kept if block is not None)

    def strip_block(block: Block, path: str, changes: Changes) -> Block | None:
        if not isinstance(block, Text):
            return block
        text = block.text
        lines: list[str] = []
        for pattern in patterns:
            text, removed = pattern.strip(text)
            lines.append(removed)
        if text is block.text:
            return block
        changes.note(path, before="".join(lines), after="")
        return Text(text) if text.strip() else None  # blank lines around the removed one are no instructions

    return rule


def _nonempty(blocks: Sequence[Block], path: str, changes: Changes) -> list[Block]:
    kept: list[Block] = []
    for i, block in enumerate(blocks):
        if block == Text(""):
            changes.note(f"{path}[{i}]", before="", after="")
        else:
            kept.append(block)
    return kept
