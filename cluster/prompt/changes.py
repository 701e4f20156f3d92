"""What a rule did, counted in full and told in part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.prompt.conversation import Change
from router.limits import MAX_CHANGE_CHARS, MAX_CHANGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.prompt.conversation import Conversation

    Rule = Callable[[Conversation], "tuple[Conversation, tuple[Change, ...]]"]


class Changes:
    """Collects what one rule changes, up to `MAX_CHANGES` of at most `MAX_CHANGE_CHARS` each. False when empty."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._made: list[Change] = []

    def note(self, path: str, *, before: str, after: str) -> None:
        """One more change."""
        if len(self._made) < MAX_CHANGES:
            self._made.append(Change(self._rule, path, before[:MAX_CHANGE_CHARS], after[:MAX_CHANGE_CHARS]))

    def all(self) -> tuple[Change, ...]:
        """In the order they were made."""
        return tuple(self._made)

    def __bool__(self) -> bool:
        return bool(self._made)
