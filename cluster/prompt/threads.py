"""Conversations whose prompts are known: found again by the raw bytes of their messages, grown by their new turns.

A thread is one conversation up to its last answer: raw messages, tokens, block hashes. Every answer in it is a boundary
from which a request may go on. Equality is that of all bytes, per tenant: a digest only says where to look.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_128

from router.hashing import BYTES_PER_TOKEN, block_hashes, canonical_bytes

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from cluster.prompt.conversation import Conversation, Message

HASH_BYTES: Final = 40  # of one block hash: an int and its place in a list
BOUNDARY_BYTES: Final = 1_000  # of a boundary, without the answer it holds


class Head(NamedTuple):
    """What stands before all messages and beside them: whose conversation it is (`tenant`, `model`) and `parts`, all
    that a request's prompt depends on but its messages. Compared in full."""

    tenant: str
    model: str
    parts: tuple[Hashable, ...]


class Turns(NamedTuple):
    """Turns of the assistant in a prompt: those that are the tokens that were generated, and those written anew."""

    spliced: int
    written: int


class Boundary(NamedTuple):
    """A conversation through one of its answers. `messages` raw ones, `size` bytes of tokens; `answer` is the canonical
    message, `past` the digest of all turns through it (see `cluster.prompt.turns.pasts`), `place` that of `chain`."""

    messages: int
    size: int
    answer: Message
    past: xxh3_128
    place: bytes
    turns: Turns


class Thread:
    """One conversation of one tenant. `shell` is the canonical conversation without messages.

    Only what a boundary covers is kept; `tokens` are packed u32.
    """

    def __init__(self, head: Head, shell: Conversation) -> None:
        self.head = head
        self.shell = shell
        self.raws: list[bytes] = []
        self.tokens = bytearray()
        self.boundaries: list[Boundary] = []
        self._hashes: dict[tuple[int, int], list[int]] = {}

    def grow(self, raws: Iterable[bytes], tokens: bytes, boundary: Boundary) -> None:
        """Append what stands between the last boundary and `boundary`."""
        self.raws += raws
        self.tokens += tokens
        self.boundaries.append(boundary)

    def branch(self, at: int) -> Thread:
        """A thread of its own that ends at boundary number `at`. O(its tokens)."""
        boundary = self.boundaries[at]
        other = Thread(self.head, self.shell)
        other.raws = self.raws[: boundary.messages]
        other.tokens = self.tokens[: boundary.size]
        other.boundaries = self.boundaries[: at + 1]
        return other

    def hashes(self, tokens: bytes, size: int, *, block_size: int, seed: int) -> list[int]:
        """Block hashes of a prompt whose first `size` bytes are this thread's. O(new tokens), but for the first time.

        Those of blocks within `size` are kept.
        """
        whole = size // (block_size * BYTES_PER_TOKEN)
        known = self._hashes.setdefault((block_size, seed), [])
        start = min(whole, len(known))
        parent = known[start - 1] if start else None
        new = block_hashes(tokens, block_size=block_size, seed=seed, start=start, parent=parent)
        known[start:] = known[start:] if len(known) > whole else new[: whole - start]
        return known[:start] + new

    @property
    def cost_bytes(self) -> int:
        """About what it takes in memory. The head twice: as it was sent, and as `shell` reads it."""
        head = 2 * sum(len(part) for part in self.head.parts if isinstance(part, str | bytes))
        hashes = sum(map(len, self._hashes.values())) * HASH_BYTES
        return head + sum(map(len, self.raws)) + len(self.tokens) + hashes + len(self.boundaries) * BOUNDARY_BYTES

    def __repr__(self) -> str:
        return f"Thread({len(self.raws)} messages, {len(self.tokens) // BYTES_PER_TOKEN} tokens)"


class Found(NamedTuple):
    """A thread that a request continues, at boundary number `at`."""

    thread: Thread
    at: int

    @property
    def boundary(self) -> Boundary:
        """The boundary itself."""
        return self.thread.boundaries[self.at]


class ThreadMemory:
    """Bounded in bytes. The least recently used thread of the tenant that holds most goes first.

    Not safe for several threads of execution at once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._threads: dict[str, OrderedDict[int, Thread]] = {}  # by tenant, the least recently used first
        self._places: dict[bytes, tuple[Thread, int]] = {}
        self._costs: dict[int, int] = {}
        self._bytes: dict[str, int] = {}

    def find(self, head: Head, raws: Sequence[bytes], places: Sequence[bytes]) -> Found | None:
        """The longest known beginning of a conversation; `places` is its `chain`. O(its bytes)."""
        if head.tenant not in self._threads:
            return None
        for digest in reversed(places):
            place = self._places.get(digest)
            if place is not None and self._is(place, head, raws):
                self._threads[head.tenant].move_to_end(id(place[0]))
                return Found(*place)
        return None

    def keep(self, thread: Thread) -> None:
        """Remember a thread, or that it grew; not one that is larger than the memory."""
        self._drop(thread)
        cost, tenant = thread.cost_bytes, thread.head.tenant
        if cost > self._max_bytes:
            return
        self._threads.setdefault(tenant, OrderedDict())[id(thread)] = thread
        self._costs[id(thread)] = cost
        self._bytes[tenant] = self._bytes.get(tenant, 0) + cost
        for at, boundary in enumerate(thread.boundaries):
            self._places[boundary.place] = thread, at
        while sum(self._bytes.values()) > self._max_bytes:
            _, largest = max((held, tenant) for tenant, held in self._bytes.items())
            self._drop(next(iter(self._threads[largest].values())))

    def check_integrity(self) -> None:
        """Costs are counted right and bounded; every place leads to a thread that is kept, and to its boundary."""
        threads = {key: thread for kept in self._threads.values() for key, thread in kept.items()}
        assert self._costs.keys() == threads.keys()
        assert sum(self._bytes.values()) == sum(self._costs.values()) <= self._max_bytes
        assert all(self._threads.values())
        for place, (thread, at) in self._places.items():
            assert threads[id(thread)] is thread
            assert thread.boundaries[at].place == place
            assert chain(thread.head, thread.raws)[thread.boundaries[at].messages - 1] == place
        for thread in threads.values():
            assert thread.boundaries[-1].messages == len(thread.raws)
            assert thread.boundaries[-1].size == len(thread.tokens)

    def _is(self, place: tuple[Thread, int], head: Head, raws: Sequence[bytes]) -> bool:
        thread, at = place
        count = thread.boundaries[at].messages
        return thread.head == head and thread.raws[:count] == raws[:count]

    def _drop(self, thread: Thread) -> None:
        tenant, key = thread.head.tenant, id(thread)
        if key not in self._costs:
            return
        del self._threads[tenant][key]
        self._bytes[tenant] -= self._costs.pop(key)
        for boundary in thread.boundaries:
            if (place := self._places.get(boundary.place)) is not None and place[0] is thread:
                del self._places[boundary.place]
        if not self._threads[tenant]:
            del self._threads[tenant], self._bytes[tenant]

    def __repr__(self) -> str:
        count, held = sum(map(len, self._threads.values())), sum(self._bytes.values())
        return f"ThreadMemory({count} threads of {len(self._threads)} tenants, {held} of {self._max_bytes} bytes)"


def chain(head: Head, raws: Sequence[bytes]) -> list[bytes]:
    """For each message the digest of the head and all messages through it. O(bytes)."""
    digest = xxh3_128(canonical_bytes((head.tenant, head.model, str(hash(head.parts)))))
    digests: list[bytes] = []
    for raw in raws:
        digest.update(b"%d;" % len(raw))
        digest.update(raw)
        digests.append(digest.digest())
    return digests
