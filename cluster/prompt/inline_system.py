"""Rule 3: system messages that stand inside of the conversation.

Those before the first assistant turn belong to the system text: there they stand at the same place in every later turn,
and in every session on the same repository. Later ones stay where they are, as a user's text in reminder tags that
coding agents use themselves: at the head each would rewrite the whole prompt, as system turns many templates refuse
them, and a prompt that ends on one derails tool calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from msgspec.structs import replace

from cluster.prompt.changes import Changes
from cluster.prompt.conversation import Message, Text, ToolResult
from cluster.prompt.plain import join_lines, plain_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cluster.prompt.conversation import Change, Conversation

InlineSystem = Literal["user", "native", "merge"]

_OPEN: Final = "<system-reminder>"
_CLOSE: Final = "</system-reminder>"


def head_length(messages: Sequence[Message]) -> int:
    """How many messages precede the first assistant turn. One without content is none."""
    turns = (i for i, message in enumerate(messages) if message.role == "assistant" and message.blocks)
    return next(turns, len(messages))


def leading_system(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """Move system messages that precede the first assistant turn behind the system text, in their order."""
    return _into_head(conversation, range(head_length(conversation.messages)), Changes("leading_system"))


def merged_system(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """`inline_system: merge`: every system message joins the system text. Each new one makes the whole prompt cold."""
    return _into_head(conversation, range(len(conversation.messages)), Changes("inline_system"))


def reminders_in_place(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """`inline_system: user`: every system message becomes user text where it stands; see `_Placement`."""
    return _placed(conversation, as_user=True)


def results_first(conversation: Conversation) -> tuple[Conversation, tuple[Change, ...]]:
    """`inline_system: native`: system messages stay system messages, only never between a call and its result."""
    return _placed(conversation, as_user=False)


def _into_head(
    conversation: Conversation, among: Collection[int], changes: Changes
) -> tuple[Conversation, tuple[Change, ...]]:
    moved = dict.fromkeys(i for i in among if conversation.messages[i].role == "system")
    if not moved:
        return conversation, ()
    system = list(conversation.system)
    for i in moved:
        message = conversation.messages[i]
        system += [block if isinstance(block, Text) else Text(plain_text(block)) for block in message.blocks]
        text = "".join(map(plain_text, message.blocks[:1]))
        changes.note(message.path, before=text, after=text)
    messages = tuple(message for i, message in enumerate(conversation.messages) if i not in moved)
    return replace(conversation, system=tuple(system), messages=messages), changes.all()


def _placed(conversation: Conversation, *, as_user: bool) -> tuple[Conversation, tuple[Change, ...]]:
    if all(message.role != "system" for message in conversation.messages):
        return conversation, ()
    placement = _Placement(as_user=as_user)
    for message in conversation.messages:
        placement.add(message)
    placement.release()
    if not placement.changes:
        return conversation, ()
    return replace(conversation, messages=tuple(placement.messages)), placement.changes.all()


class _Placement:
    """Messages in their order, system messages among them put where a template can take them.

    As user text one joins the user message before it, or is a message of its own. Between a call and its result there
    is no place: it waits, and stands right behind the results.
    """

    def __init__(self, *, as_user: bool) -> None:
        self._as_user = as_user
        self.messages: list[Message] = []
        self.changes = Changes("inline_system")
        self._before_results: list[Message] = []
        self._waiting: list[Message] = []

    def add(self, message: Message) -> None:
        """The next message in the client's order."""
        if message.role == "system":
            self._waiting.append(message)
            return
        if _results_end(message):
            self._before_results += self._waiting
            self._waiting = []
        else:
            self.release()
        self.messages.append(message)

    def release(self) -> None:
        """What waits stands here. Linear, however many wait."""
        if self._as_user:
            self._release_as_user()
        else:
            for message in self._before_results:
                self.changes.note(message.path, before=_said(message), after=_said(message))
            self.messages += [*self._before_results, *self._waiting]
        self._before_results, self._waiting = [], []

    def _release_as_user(self) -> None:
        behind_results, at_end = self._reminders(self._before_results), self._reminders(self._waiting)
        if not behind_results and not at_end:
            return
        if self.messages and self.messages[-1].role == "user":
            last = self.messages[-1]
            at = _results_end(last)
            blocks = (*last.blocks[:at], *behind_results, *last.blocks[at:], *at_end)
            self.messages[-1] = replace(last, blocks=blocks)
        else:
            self.messages.append(Message("user", (*behind_results, *at_end), self._waiting[0].path))

    def _reminders(self, messages: Sequence[Message]) -> list[Text]:
        texts = [(message, _reminder(_said(message))) for message in messages]
        for message, text in texts:
            self.changes.note(message.path, before=_said(message), after=text)
        return [Text(text) for _, text in texts if text]


def _results_end(message: Message) -> int:
    """Where the tool results of a message end; 0 when it has none."""
    return max((i + 1 for i, block in enumerate(message.blocks) if isinstance(block, ToolResult)), default=0)


def _said(message: Message) -> str:
    return join_lines(map(plain_text, message.blocks))


def _reminder(text: str) -> str:
    """In tags, once. No text is no reminder."""
    bare = text.strip()
    if not bare or (bare.startswith(_OPEN) and bare.endswith(_CLOSE)):
        return bare
    return f"{_OPEN}\n{bare}\n{_CLOSE}"
