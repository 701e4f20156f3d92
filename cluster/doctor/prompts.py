"""Conversations as prompts, under any set of canonical rules: what a prompt was worth without Kvist, and with it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cluster.prompt.canonical import Canonicaliser, Rules
from cluster.prompt.segments import Segmenter
from cluster.prompt.template import render
from router.errors import InvalidRequest
from router.limits import SEGMENT_CACHE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.models.served import Tokenizer
    from cluster.prompt.conversation import Conversation
    from cluster.prompt.template import ChatTemplate

PLAIN: Final = {"volatile_lines": (), "inline_system": "native"}
# No prompt without the first; the others cannot be seen in one.
ALWAYS: Final = frozenset({"media_placeholders", "exact_turns", "literal_marks"})


class Prompt(NamedTuple):
    """A rendered prompt without the header of the answer to come, and the conversation it shows."""

    text: str
    tokens: Sequence[int]
    conversation: Conversation


def switches() -> tuple[str, ...]:
    """The names of the rules that can be switched off alone."""
    return tuple(field.name for field in msgspec.structs.fields(Rules) if field.name not in ALWAYS)


def rules_without(*names: str) -> Rules:
    """The default rules, those off."""
    off = {name: PLAIN.get(name, False) for name in names}
    return msgspec.structs.replace(Rules(), **off)


class Reader:
    """Renders and encodes with one model's template and tokenizer."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._segmenter = Segmenter(tokenizer, atoms=tokenizer.atoms(), cache_bytes=SEGMENT_CACHE_BYTES)
        self._canonicalisers: dict[Rules, Canonicaliser] = {}

    def read(self, conversation: Conversation, rules: Rules) -> Prompt | None:
        """The prompt under these rules; None when the template cannot show it without some of them."""
        canonicaliser = self._canonicalisers.setdefault(rules, Canonicaliser(rules))
        try:
            canonical, _ = canonicaliser.apply(conversation)
            text = render(canonical, self._template, ending="closed")
        except InvalidRequest:
            return None
        plan = self._segmenter.plan(text)
        tokens = plan.encode()
        self._segmenter.remember(plan)
        return Prompt(text, array("I", tokens), canonical)
