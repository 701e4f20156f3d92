"""A prompt is encoded in segments, cut at the tokens a tokenizer never merges with their neighbours.

So a long prompt costs only its new segments; others come from a bounded cache. Always equal to encoding in one shot.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from cluster.prompt.literal import SEAM

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from cluster.prompt.template import Encoder


class Segmenter:
    """Encodes prompts with one model's encoder. `atoms` are texts that always become one token of their own; `seamed`
    are texts that look like one but for a seam, at which prompts are cut (see `cluster.prompt.literal`).

    Not safe for several threads at once, except `cut` and `Plan.encode`, which touch no shared state.
    """

    def __init__(
        self, encoder: Encoder, *, atoms: Mapping[str, bytes], cache_bytes: int, seamed: Iterable[str] = ()
    ) -> None:
        self._encoder = encoder
        self._atoms = dict(atoms)
        self._seamed = frozenset(seamed)
        self._atom = _any_of(atoms)
        self._place = _any_of({*atoms, *self._seamed})
        self._cache = SegmentCache(cache_bytes)

    def cut(self, prompt: str) -> Cut:
        """Atoms and the texts between them. O(len(prompt)); may run in a thread."""
        segments = [s for s in self._pieces(prompt) if s]
        return Cut(segments, list(dict.fromkeys(segments)))

    def _pieces(self, prompt: str) -> Iterator[str]:
        """Atom by atom: one call for all of them would hold the interpreter lock to its end."""
        at = 0
        for match in self._place.finditer(prompt) if self._place else ():
            if match[0] in self._seamed:
                seam = match.start() + match[0].index(SEAM)
                yield prompt[at:seam]
                at = seam + len(SEAM)
            else:
                yield prompt[at : match.start()]
                yield match[0]
                at = match.end()
        yield prompt[at:]

    def plan(self, prompt: str) -> Plan:
        """What of `prompt` is known, and what must be encoded. O(len(prompt))."""
        return self.plan_of(self.cut(prompt))

    def plan_of(self, *cuts: Cut) -> Plan:
        """The plan of texts that have been cut. O(distinct segments)."""
        distinct = dict.fromkeys(segment for cut in cuts for segment in cut.distinct)
        known = {s: tokens for s in distinct if (tokens := self._atoms.get(s) or self._cache.get(s)) is not None}
        missing = [s for s in distinct if s not in known]
        return Plan(self._encoder, [cut.segments for cut in cuts], known, missing)

    def atom(self, text: str) -> re.Match[str] | None:
        """The first atom in `text`."""
        return self._atom.search(text) if self._atom else None

    def atom_tokens(self) -> Mapping[str, bytes]:
        """The token of every atom."""
        return self._atoms

    def remember(self, plan: Plan) -> None:
        """Keep what an encoded plan found out."""
        for segment in plan.missing:
            self._cache.put(segment, plan.known[segment])


class Cut(NamedTuple):
    """A prompt in its order, and what is in it at all."""

    segments: Sequence[str]
    distinct: Sequence[str]


class Plan:
    """Texts on their way to tokens, each encoded as if it stood alone."""

    def __init__(
        self, encoder: Encoder, texts: Sequence[Sequence[str]], known: dict[str, bytes], missing: Sequence[str]
    ) -> None:
        self._encoder = encoder
        self._texts = texts
        self.known = known
        self.missing = missing

    @property
    def missing_chars(self) -> int:
        """How much there is to encode."""
        return sum(map(len, self.missing))

    def batches(self, chars: int) -> Iterator[Sequence[str]]:
        """What is missing, in parts of more than `chars` only where one segment is."""
        part: list[str] = []
        size = 0
        for segment in self.missing:
            if part and size + len(segment) > chars:
                yield part
                part, size = [], 0
            part.append(segment)
            size += len(segment)
        if part:
            yield part

    def learn(self, segments: Sequence[str]) -> None:
        """Encode some of what is missing; may run in a thread."""
        self.known.update(zip(segments, self._encoder.encode_batch(segments), strict=True))

    def encode(self) -> bytes:
        """All tokens, packed u32. Encodes what is missing; may run in a thread."""
        return b"".join(self.encode_each())

    def encode_each(self) -> list[bytes]:
        """The same, text by text."""
        if left := [segment for segment in self.missing if segment not in self.known]:
            self.learn(left)
        return [b"".join([self.known[segment] for segment in segments]) for segments in self._texts]


class SegmentCache:
    """Least recently used segments go first. Bounded by the bytes of texts and tokens, not by their number."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, segment: str) -> bytes | None:
        """The tokens, now the most recently used."""
        tokens = self._entries.get(segment)
        if tokens is not None:
            self._entries.move_to_end(segment)
        return tokens

    def put(self, segment: str, tokens: bytes) -> None:
        """Remember, unless it alone is larger than the cache."""
        if segment in self._entries or _cost(segment, tokens) > self._max_bytes:
            return
        self._entries[segment] = tokens
        self._bytes += _cost(segment, tokens)
        while self._bytes > self._max_bytes:
            self._bytes -= _cost(*self._entries.popitem(last=False))

    def check_integrity(self) -> None:
        """The count of bytes is right and within its bound."""
        assert self._bytes == sum(_cost(*entry) for entry in self._entries.items()) <= self._max_bytes

    def __repr__(self) -> str:
        return f"SegmentCache({len(self._entries)} segments, {self._bytes} of {self._max_bytes} bytes)"

    def segments(self) -> Iterable[str]:
        """Oldest first."""
        return iter(self._entries)


def _any_of(texts: Collection[str]) -> re.Pattern[str] | None:
    """Longest first, as tokenizers match: one atom may begin another."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None


def _cost(segment: str, tokens: bytes) -> int:
    """Characters may take four bytes in memory; the constant is what a dict entry and two objects need."""
    return 4 * len(segment) + len(tokens) + 200
