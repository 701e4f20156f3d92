"""The prompt of a conversation that grew: what is known of it, and its new turns, read, written and encoded alone.

Always equal to reading, writing and encoding the whole conversation; where that cannot be said, the answer is None and
the whole is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from cluster.prompt.exact_turns import Draft
from cluster.prompt.template import turns_of
from cluster.prompt.threads import Boundary, Found, Head, Thread, Turns
from cluster.prompt.turns import pasts
from router.errors import ClientError
from router.limits import WARM_TAIL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xxhash import xxh3_128

    from cluster.prompt.canonical import Canonicaliser
    from cluster.prompt.conversation import Change, Conversation, Message
    from cluster.prompt.exact_turns import ExactTurns
    from cluster.prompt.growth import Added, Grower
    from cluster.prompt.segments import Segmenter
    from cluster.prompt.threads import ThreadMemory
    from cluster.prompt.turns import KnownTurn


class Asked(NamedTuple):
    """A request by its outline; `places` is the `chain` of `head` and `raws`."""

    head: Head
    raws: list[bytes]
    places: Sequence[bytes]


class Prefix(NamedTuple):
    """The part of a prompt that a thread holds: its first `size` bytes."""

    thread: Thread
    size: int

    def hashes(self, tokens: bytes, *, block_size: int, seed: int) -> list[int]:
        """Block hashes of the whole prompt. O(what is new)."""
        return self.thread.hashes(tokens, self.size, block_size=block_size, seed=seed)


class Written(NamedTuple):
    """A prompt (packed u32) that was written as a whole, and its turns."""

    tokens: bytes
    turns: Turns


class Grown(NamedTuple):
    """A prompt (packed u32) that a known one became. `conversation` is canonical and holds the last known answer and
    what came after it; `turns` counts all past ones."""

    conversation: Conversation
    changes: tuple[Change, ...]
    tokens: bytes
    past: xxh3_128
    prefix: Prefix
    turns: Turns


class WarmPath:
    """Of one model. For one event loop."""

    def __init__(
        self,
        *,
        canonicaliser: Canonicaliser,
        grower: Grower,
        segmenter: Segmenter,
        turns: ExactTurns | None,
        memory: ThreadMemory,
    ) -> None:
        self._canonicaliser = canonicaliser
        self._grower = grower
        self._segmenter = segmenter
        self._turns = turns
        self.memory = memory

    def find(self, asked: Asked) -> Found | None:
        """What is known of a conversation, if something came after it, and not too much."""
        found = self.memory.find(asked.head, asked.raws, asked.places)
        if found is None:
            return None
        new = sum(map(len, asked.raws[found.boundary.messages :]))
        return found if 0 < new <= WARM_TAIL_BYTES else None

    def extend(
        self, asked: Asked, found: Found, tail: Conversation, *, done: Callable[[str], None] = lambda _stage: None
    ) -> Grown | None:
        """The prompt of `asked`, whose messages behind the boundary are those of `tail`. O(new text + prompt bytes).

        What it learns is kept: the next request of the conversation begins one answer later. `done` is told of stages.
        """
        answer = found.boundary.answer
        try:
            window, changes = self._canonicaliser.apply(replace(tail, system=(), messages=(answer, *tail.messages)))
        except ClientError:
            return None
        fits = window.messages[0] == answer and window.messages[-1].role == "user"
        if not fits or window.tools != found.thread.shell.tools:
            return None
        done("canonical")
        turns = list(turns_of(window))
        if any(turn.role == "tool" and not turn.name for turn in turns):
            return None  # it answers a call of an earlier turn
        *past, whole = pasts(turns[1:], found.boundary.past)
        known = self._turns.known(turns, [found.boundary.past, *past], asked.head.tenant) if self._turns else {}
        known.pop(0, None)
        behind_stub = {index + 1: turn for index, turn in known.items()}
        added = self._grower.behind_answer(window, behind_stub)
        if added is None:
            return None
        done("template")
        tokens = self._tokens(found, window, added, behind_stub)
        if tokens is None:
            return None
        prompt, rest = tokens
        all_new = sum(message.role == "assistant" for message in window.messages[1:])
        before = found.boundary.turns
        counts = Turns(before.spliced + len(added.places), before.written + all_new - len(added.places))
        grew = _Grew(tail.messages, window.messages, prompt, len(rest), counts)
        return Grown(window, changes, prompt, whole, self._grow(asked, found, grew, [*past, whole]), counts)

    def keep(self, asked: Asked, parsed: Conversation, canonical: Conversation, made: Written) -> Prefix | None:
        """Remember a conversation that was read as a whole, through its last answer. O(what follows that)."""
        tokens = made.tokens
        answers = [i for i, message in enumerate(canonical.messages) if message.role == "assistant"]
        if not answers or canonical.messages[-1].role != "user":
            return None
        added = self._grower.behind_answer(replace(canonical, messages=canonical.messages[answers[-1] :]), {})
        if added is None:
            return None
        [rest] = self._encoded([added.rest])
        if not tokens.endswith(rest):
            return None
        count = _through_last_answer(parsed.messages)
        through = replace(canonical, messages=canonical.messages[: answers[-1] + 1])
        *_, past = pasts(turns_of(through))
        thread = Thread(asked.head, replace(canonical, system=(), messages=()))
        size = len(tokens) - len(rest)
        boundary = Boundary(count, size, canonical.messages[answers[-1]], past, asked.places[count - 1], made.turns)
        thread.grow(asked.raws[:count], tokens[:size], boundary)
        self.memory.keep(thread)
        return Prefix(thread, size)

    def _tokens(
        self, found: Found, window: Conversation, added: Added, known: dict[int, KnownTurn]
    ) -> tuple[bytes, bytes] | None:
        """The whole prompt, and its part behind the last answer."""
        before = bytes(memoryview(found.thread.tokens)[: found.boundary.size])
        *encoded, rest = self._encoded([*added.texts, added.rest])
        draft = Draft(window, found.boundary.past, added.texts, [(index, known[index]) for index in added.places])
        if len(draft.true_turns([*encoded], before)) < len(draft.turns):
            return None
        if self._turns is not None:
            self._turns.used(draft)
        prompt = before + draft.join(encoded)
        return (prompt, rest) if prompt.endswith(rest) else None

    def _encoded(self, texts: Sequence[str]) -> list[bytes]:
        plan = self._segmenter.plan_of(*map(self._segmenter.cut, texts))
        encoded = plan.encode_each()
        self._segmenter.remember(plan)
        return encoded

    def _grow(self, asked: Asked, found: Found, grew: _Grew, past: Sequence[xxh3_128]) -> Prefix:
        """Let the thread go on through the window's last answer; one that goes on otherwise becomes two."""
        known = found.boundary.messages
        count = known + _through_last_answer(grew.parsed)
        if count == known:
            return Prefix(found.thread, found.boundary.size)
        is_last = found.at == len(found.thread.boundaries) - 1
        thread = found.thread if is_last else found.thread.branch(found.at)
        size = len(grew.prompt) - grew.rest_bytes
        answer = next(message for message in reversed(grew.window) if message.role == "assistant")
        through = grew.window[1 : len(grew.window) - _after_last_answer(grew.window)]
        turns = sum(1 for _ in turns_of(replace(thread.shell, messages=through)))
        boundary = Boundary(count, size, answer, past[turns], asked.places[count - 1], grew.turns)
        thread.grow(asked.raws[known:count], grew.prompt[found.boundary.size : size], boundary)
        self.memory.keep(thread)
        return Prefix(thread, size)


class _Grew(NamedTuple):
    parsed: Sequence[Message]
    window: Sequence[Message]
    prompt: bytes
    rest_bytes: int
    turns: Turns


def _through_last_answer(messages: Sequence[Message]) -> int:
    """How many of the client's messages there are through the last answer; one without content is none."""
    answers = (i for i, message in enumerate(messages, start=1) if message.role == "assistant" and message.blocks)
    return max(answers, default=0)


def _after_last_answer(messages: Sequence[Message]) -> int:
    return next((i for i, message in enumerate(reversed(messages)) if message.role == "assistant"), len(messages))
