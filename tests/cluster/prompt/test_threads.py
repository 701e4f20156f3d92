"""The memory of known conversations: found by all their bytes, bounded, fair between tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128

from cluster.prompt.conversation import Conversation, Message, Text
from cluster.prompt.threads import Boundary, Head, Thread, ThreadMemory, Turns, chain
from router.limits import THREAD_MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

SHELL = Conversation(api="messages", model="m")
ANSWER = Message("assistant", (Text("yes"),))
RAWS = [b'"a"', b'"b"', b'"c"', b'"d"', b'"e"', b'"f"']


def head(tenant: str = "t", *parts: str) -> Head:
    return Head(tenant, "m", parts)


def thread(raws: Sequence[bytes], ends: Sequence[int], *, of: Head | None = None, tokens_each: int = 1) -> Thread:
    """A conversation with a boundary after each of `ends` messages, so many tokens per message."""
    made = Thread(of or head(), SHELL)
    places = chain(made.head, raws)
    known = 0
    for end in ends:
        boundary = Boundary(end, end * 4 * tokens_each, ANSWER, xxh3_128(), places[end - 1], Turns(0, end))
        made.grow(raws[known:end], bytes(4 * tokens_each * (end - known)), boundary)
        known = end
    return made


def found(memory: ThreadMemory, raws: Sequence[bytes], *, of: Head | None = None) -> int | None:
    """How many messages of a conversation are known."""
    asked = of or head()
    hit = memory.find(asked, raws, chain(asked, raws))
    return None if hit is None else hit.boundary.messages


def test_the_longest_known_beginning_is_found() -> None:
    memory = ThreadMemory(10**6)
    memory.keep(thread(RAWS, [2, 4]))
    assert found(memory, RAWS) == 4
    assert found(memory, RAWS[:3]) == 2
    assert found(memory, [*RAWS[:3], b'"other"']) == 2
    assert found(memory, [b'"other"', *RAWS]) is None
    memory.check_integrity()


@pytest.mark.parametrize("other", [head("u"), head("t", "tools"), Head("t", "n", ())])
def test_another_tenant_model_or_head_finds_nothing(other: Head) -> None:
    memory = ThreadMemory(10**6)
    memory.keep(thread(RAWS, [4]))
    assert found(memory, RAWS, of=other) is None


def test_a_digest_alone_finds_nothing() -> None:
    """All bytes are compared: of the head, and of the messages."""
    memory = ThreadMemory(10**6)
    memory.keep(thread(RAWS, [4]))
    places = chain(head(), RAWS)
    assert memory.find(head(), [b'"x"', *RAWS[1:]], places) is None
    assert memory.find(head("t", "tools"), RAWS, places) is None


def test_a_branch_ends_at_its_boundary_and_leaves_the_thread_alone() -> None:
    whole = thread(RAWS, [2, 4])
    branch = whole.branch(0)
    branch.grow([b'"z"'], b"1234", Boundary(3, 12, ANSWER, xxh3_128(), b"p", Turns(0, 1)))
    assert (branch.raws, len(branch.tokens)) == ([*RAWS[:2], b'"z"'], 12)
    assert (whole.raws, len(whole.tokens)) == (RAWS[:4], 16)


def test_thread_memory_bytes_stops_a_flood_of_conversations() -> None:
    """The oldest go; one that is larger than the memory is not kept."""
    one = thread(RAWS, [4], tokens_each=100).cost_bytes
    memory = ThreadMemory(3 * one + 10)
    for i in range(10):
        memory.keep(thread([b"%d" % i, *RAWS[1:]], [4], tokens_each=100))
        memory.check_integrity()
    assert [found(memory, [b"%d" % i, *RAWS[1:]]) for i in (0, 6, 7, 9)] == [None, None, 4, 4]
    memory.keep(thread(RAWS, [4], tokens_each=10**4))
    assert found(memory, RAWS) is None
    assert THREAD_MEMORY_BYTES <= 2**30


def test_a_head_counts_as_it_was_sent_and_as_it_was_read() -> None:
    """Else a thousand conversations with 100 kB of tools each hold what no limit knows of."""
    small, large = thread(RAWS, [4], of=head("t", "x")), thread(RAWS, [4], of=head("t", "x" * 1001))
    assert large.cost_bytes - small.cost_bytes == 2000


def test_a_tenant_that_floods_pushes_out_its_own_conversations_first() -> None:
    one = thread(RAWS, [4], tokens_each=100).cost_bytes
    memory = ThreadMemory(4 * one + 10)
    memory.keep(thread(RAWS, [4], of=head("small"), tokens_each=100))
    for i in range(20):
        memory.keep(thread([b"%d" % i, *RAWS[1:]], [4], tokens_each=100))
    assert found(memory, RAWS, of=head("small")) == 4


def test_what_is_used_stays() -> None:
    one = thread(RAWS, [4], tokens_each=100).cost_bytes
    memory = ThreadMemory(2 * one + 10)
    first, second, third = ([b"%d" % i, *RAWS[1:]] for i in range(3))
    memory.keep(thread(first, [4], tokens_each=100))
    memory.keep(thread(second, [4], tokens_each=100))
    assert found(memory, first) == 4
    memory.keep(thread(third, [4], tokens_each=100))
    assert [found(memory, raws) for raws in (first, second, third)] == [4, None, 4]


STEPS = st.tuples(st.sampled_from("tu"), st.lists(st.sampled_from(RAWS[:2]), min_size=1, max_size=4), st.integers(1, 4))


@given(st.lists(STEPS, max_size=30), st.integers(1_000, 20_000))
def test_the_memory_agrees_with_a_table_of_all_beginnings(steps: list[tuple[str, list[bytes], int]], room: int) -> None:
    """What it finds was kept, and it stays consistent, however little room there is."""
    memory = ThreadMemory(room)
    kept: set[tuple[str, tuple[bytes, ...]]] = set()
    for tenant, raws, end in steps:
        count = min(end, len(raws))
        memory.keep(thread(raws, [count], of=head(tenant)))
        memory.check_integrity()
        kept.add((tenant, tuple(raws[:count])))
        for who in "tu":
            seen = found(memory, raws, of=head(who))
            assert seen is None or (who, tuple(raws[:seen])) in kept
    assert repr(memory).startswith("ThreadMemory(")
