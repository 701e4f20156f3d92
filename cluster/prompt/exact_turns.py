"""Exact turns: what a model generated for a turn is spliced back when the client returns that turn, at that place.

The next prompt is then the last one and its answer, token by token, with more behind it, although clients write
arguments in a form of their own, drop reasoning or empty text. What is not the turn's own words stays as the template
writes it. See docs/adr/0004-exact-turns.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_128

from cluster.prompt.conversation import Conversation, Message
from cluster.prompt.cutting import Wanted
from cluster.prompt.template import render, turns_of
from cluster.prompt.turns import (
    KnownTurn,
    Place,
    digest_at,
    digest_of_calls,
    digest_of_ids,
    digest_of_text,
    match,
    pasts,
)
from router.errors import InvalidRequest
from router.hashing import BYTES_PER_TOKEN
from router.limits import MAX_OPENING_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cluster.output.detokenizer import Vocabulary
    from cluster.output.events import Said
    from cluster.prompt.cutting import Cutter
    from cluster.prompt.template import ChatTemplate, Turn
    from cluster.prompt.turns import TurnMemory


class Draft(NamedTuple):
    """A prompt as texts, each to be encoded as if it stood alone, and the known turns between them, by their index.

    `past` is the digest of all that the conversation says.
    """

    conversation: Conversation
    past: xxh3_128
    texts: Sequence[str]
    turns: Sequence[tuple[int, KnownTurn]] = ()

    @property
    def past_turns(self) -> int:
        """How many turns of the assistant there are, known or not; one that is being continued is none."""
        return sum(message.role == "assistant" for message in self.conversation.messages[:-1])

    def true_turns(self, encoded: Sequence[bytes], before: bytes = b"") -> dict[int, KnownTurn]:
        """Those, from the first one on, that answered the very tokens that stand before them. O(tokens).

        `before` are tokens that precede the draft's.
        """
        digest, size = xxh3_128(before), len(before)
        true: dict[int, KnownTurn] = {}
        for (index, turn), text in zip(self.turns, encoded, strict=False):
            digest.update(text)
            size += len(text)
            if size != turn.prompt_bytes or digest.digest() != turn.prefix:
                break
            digest.update(turn.tokens)
            size += len(turn.tokens)
            true[index] = turn
        return true

    def worth_another_try(self, encoded: Sequence[bytes]) -> dict[int, KnownTurn]:
        """All turns but the first false one and those behind it that are off by as many tokens: they answered a prompt
        that differs in the same way, such as by other tools. Turns that came after the difference may be true as soon
        as those are written anew. O(tokens).
        """
        true = self.true_turns(encoded)
        if len(true) == len(self.turns):
            return true
        off = self._displacements(encoded)[len(true) :]
        same = next((i for i, tokens in enumerate(off) if i and (tokens != off[0] or not off[0])), len(off))
        return true | dict(self.turns[len(true) + same :])

    def _displacements(self, encoded: Sequence[bytes]) -> list[int]:
        """For each turn by how many bytes more stand before it than stood there when it was generated."""
        size, found = 0, []
        for (_, turn), text in zip(self.turns, encoded, strict=False):
            size += len(text)
            found.append(size - turn.prompt_bytes)
            size += len(turn.tokens)
        return found

    def join(self, encoded: Sequence[bytes]) -> bytes:
        """The prompt, packed u32."""
        parts = [encoded[0]]
        for (_, turn), text in zip(self.turns, encoded[1:], strict=True):
            parts += (turn.tokens, text)
        return b"".join(parts)


class Generated(NamedTuple):
    """An answer: the blocks that clients were told, and the tokens. `prompt` is what it answers, `past` that of its
    draft (prompt and tokens packed u32)."""

    prompt: bytes
    past: xxh3_128
    said: Sequence[Said]
    tokens: bytes


class ExactTurns:
    """Of one model. `draft` and `redraft` may run in threads, everything else belongs to one event loop."""

    def __init__(self, model: str, *, cutter: Cutter, memory: TurnMemory, vocabulary: Vocabulary) -> None:
        self._model = model
        self._cutter = cutter
        self._memory = memory
        self._vocabulary = vocabulary
        self._atoms = {token: text for text, token in cutter.segmenter.atom_tokens().items()}

    def draft(self, conversation: Conversation, tenant: str) -> Draft:
        """The prompt around turns that were generated for this tenant in a conversation that reads the same.

        A last turn of the assistant is being continued and none of them. O(text). Raises `InvalidRequest` when the
        template refuses the conversation.
        """
        turns = list(turns_of(conversation))
        *before, past = pasts(turns)
        return self.redraft(Draft(conversation, past, ()), self.known(turns, before, tenant))

    def known(self, turns: Sequence[Turn], pasts: Sequence[xxh3_128], tenant: str) -> dict[int, KnownTurn]:
        """Those turns that were generated for this tenant, each after its past. O(turns)."""
        last_user = max((index for index, turn in enumerate(turns) if turn.role == "user"), default=-1)
        known = {}
        for index, (turn, past) in enumerate(zip(turns[:-1], pasts, strict=False)):
            if turn.role != "assistant":
                continue
            generated = self._memory.at(Place(tenant, self._model, digest_at(past, turn)))
            one = match(generated, turn, ids_matter=self._cutter.shows_ids)
            if one and self._cutter.can_cut(turn, reasoning=bool(one.reasoning), user_since=index < last_user):
                known[index] = one
        return known

    def redraft(self, draft: Draft, known: Mapping[int, KnownTurn]) -> Draft:
        """The same around those of the `known` turns that can be spliced: rendered once as a rule, at most three times.

        Raises `InvalidRequest` when the template refuses the conversation.
        """

        def rendered(template: ChatTemplate) -> str:
            return render(draft.conversation, template)

        for _ in range(2):
            if not known:
                break
            wanted = {index: Wanted(turn.opening, bool(turn.reasoning)) for index, turn in known.items()}
            try:
                cuts = self._cutter.cut(rendered, wanted)
            except InvalidRequest:
                break  # the turn's own words may please the template
            if len(cuts.places) == len(known):
                return draft._replace(texts=cuts.texts, turns=[(index, known[index]) for index in cuts.places])
            known = {index: known[index] for index in cuts.places}
        return draft._replace(texts=[rendered(self._cutter.template)], turns=())

    def used(self, draft: Draft) -> None:
        """Its turns are worth keeping."""
        for _, turn in draft.turns:
            self._memory.use(turn)

    def remember(self, conversation: Conversation, tenant: str, generated: Generated) -> None:
        """Keep a whole answer to a canonical conversation. O(prompt tokens + answer).

        Nothing is kept of what could not be spliced: a turn that went on with one of the client's, one without words.
        """
        if not conversation.messages or conversation.messages[-1].role == "assistant":
            return
        prompt, past, said, tokens = generated
        answer = Conversation(api=conversation.api, model="", messages=(Message("assistant", tuple(said)),))
        turn, opening = next(turns_of(answer)), self._opening(prompt)
        if not (opening and (turn.content.strip() or turn.calls)) or not self._shows_ids_of(turn, tokens):
            return
        if not self._cutter.can_cut(turn, reasoning=bool(turn.reasoning.strip()), user_since=not turn.calls):
            return
        self._memory.put(
            KnownTurn(
                place=Place(tenant, self._model, digest_at(past, turn)),
                calls=digest_of_calls(turn.calls),
                ids=digest_of_ids(turn.calls),
                reasoning=digest_of_text(turn.reasoning),
                prefix=xxh3_128(prompt).digest(),
                prompt_bytes=len(prompt),
                opening=opening,
                tokens=self._without_end(tokens, turn),
            )
        )

    def _without_end(self, tokens: bytes, turn: Turn) -> bytes:
        last = tokens[-BYTES_PER_TOKEN:]
        atom = self._atoms.get(last)
        ended = atom is not None and self._cutter.ends(atom, turn, silent=not self._vocabulary.bytes_of(last))
        return tokens[:-BYTES_PER_TOKEN] if ended else tokens

    def _opening(self, prompt: bytes) -> str:
        """The text of its last atom and of what is behind it; empty when that is far from the end."""
        for at in range(
            len(prompt) - BYTES_PER_TOKEN,
            max(0, len(prompt) - MAX_OPENING_TOKENS * BYTES_PER_TOKEN) - 1,
            -BYTES_PER_TOKEN,
        ):
            atom = self._atoms.get(prompt[at : at + BYTES_PER_TOKEN])
            if atom is not None:
                return atom + self._vocabulary.bytes_of(prompt[at + BYTES_PER_TOKEN :]).decode(errors="replace")
        return ""

    def _shows_ids_of(self, turn: Turn, tokens: bytes) -> bool:
        """Where prompts show ids, results are told by them: so the model must have written those that clients know."""
        if not self._cutter.shows_ids or not turn.calls:
            return True
        text = self._vocabulary.bytes_of(tokens).decode(errors="replace")
        return all(call.id in text for call in turn.calls)
