"""Remembered responses: bounded, fair between tenants, and read by nobody else."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.api.response_memory import ResponseMemory, cost_of
from cluster.prompt.conversation import Media, Message, Text, Thinking, ToolCall, ToolResult
from router.limits import MAX_REMEMBERED_RESPONSES, REMEMBERED_RESPONSES_BYTES

if TYPE_CHECKING:
    from cluster.prompt.conversation import Block


def said(text: str) -> tuple[Message, ...]:
    return (Message("user", (Text(text),)),)


def test_more_responses_than_a_tenant_may_keep_push_out_the_ones_not_used_for_longest() -> None:
    memory = ResponseMemory()
    for i in range(MAX_REMEMBERED_RESPONSES):
        memory.put("t", f"r{i}", said(str(i)))
    memory.get("t", "r0")
    memory.put("t", "new", said("x"))
    assert memory.get("t", "r0") == said("0")
    assert memory.get("t", "r1") is None
    memory.check_integrity()


def test_more_bytes_than_there_is_room_for_go_from_whoever_holds_most() -> None:
    memory = ResponseMemory()
    memory.put("small", "r", said("x"))
    for i in range(5):
        memory.put("large", f"r{i}", said("x" * (REMEMBERED_RESPONSES_BYTES // 4)))
        memory.check_integrity()
    assert memory.get("small", "r") == said("x")
    assert [i for i in range(5) if memory.get("large", f"r{i}")] == [2, 3, 4]


def test_what_alone_is_too_large_pushes_nothing_out() -> None:
    memory = ResponseMemory(max_bytes=10_000)
    memory.put("t", "r", said("x"))
    memory.put("t", "large", said("x" * 10_000))
    assert (memory.get("t", "r"), memory.get("t", "large")) == (said("x"), None)


def test_a_tenant_never_sees_anothers_responses() -> None:
    memory = ResponseMemory()
    memory.put("a", "r", said("secret"))
    assert memory.get("b", "r") is None
    assert not memory.forget("b", "r")
    assert memory.get("a", "r") == said("secret")


def test_all_that_is_kept_is_counted() -> None:
    text = "x" * 1_000
    blocks: list[Block] = [Text(text), Thinking(text), ToolCall("c", "n", text), ToolResult("c", (Text(text),))]
    assert all(cost_of("r", [Message("user", (block,))]) > 1_000 for block in blocks)
    assert cost_of("r", [Message("user", (Media("image"),))]) > cost_of("r", [])
    assert cost_of("r" * 1_000, []) > 1_000


def test_it_says_how_full_it_is() -> None:
    memory = ResponseMemory(max_bytes=10_000)
    memory.put("t", "r", said("x"))
    assert repr(memory).startswith("ResponseMemory(1 responses of 1 tenants, ")


tenants = st.sampled_from("abc")
responses = st.sampled_from([f"r{i}" for i in range(6)])


class MemoryModel(RuleBasedStateMachine):
    """Against a plain list of entries in the order of their last use."""

    MAX_BYTES, PER_TENANT = 6_000, 3

    def __init__(self) -> None:
        super().__init__()
        self.memory = ResponseMemory(max_bytes=self.MAX_BYTES, max_per_tenant=self.PER_TENANT)
        self.model: OrderedDict[tuple[str, str], tuple[Message, ...]] = OrderedDict()

    @rule(tenant=tenants, response=responses, size=st.integers(0, 2_500))
    def put(self, tenant: str, response: str, size: int) -> None:
        messages = said("x" * size)
        self.memory.put(tenant, response, messages)
        self.model.pop((tenant, response), None)
        self.model[tenant, response] = messages
        mine = [key for key in self.model if key[0] == tenant]
        for key in mine[: -self.PER_TENANT]:
            del self.model[key]
        while sum(map(self.cost, self.model)) > self.MAX_BYTES:
            most = max(sum(self.cost(key) for key in self.model if key[0] == one) for one in "abc")
            losers = [one for one in "abc" if sum(self.cost(key) for key in self.model if key[0] == one) == most]
            if len(losers) > 1:  # either may lose: follow the memory
                held = {
                    one
                    for one in losers
                    if all(self.memory.get(*key) is not None for key in self.model if key[0] == one)
                }
                losers = [one for one in losers if one not in held]
            del self.model[next(key for key in self.model if key[0] == losers[0])]

    @rule(tenant=tenants, response=responses)
    def get(self, tenant: str, response: str) -> None:
        assert self.memory.get(tenant, response) == self.model.get((tenant, response))
        if (tenant, response) in self.model:
            self.model.move_to_end((tenant, response))

    @rule(tenant=tenants, response=responses)
    def forget(self, tenant: str, response: str) -> None:
        assert self.memory.forget(tenant, response) == (self.model.pop((tenant, response), None) is not None)

    @invariant()
    def is_sound(self) -> None:
        self.memory.check_integrity()

    def cost(self, key: tuple[str, str]) -> int:
        return cost_of(key[1], self.model[key])


MemoryModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestMemoryAgainstItsModel = MemoryModel.TestCase
