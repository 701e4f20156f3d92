"""Responses that are continued: what is remembered of one, and that continuing is the same as sending all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.dialect import Answer
from cluster.api.response_memory import ResponseMemory
from cluster.api.responses import parse_responses, remember, resumed
from cluster.output.assembly import Ending
from cluster.prompt.conversation import (
    Text,
)
from router.errors import UnknownResponse
from tests.cluster.api.responses_bodies import USER, body

if TYPE_CHECKING:
    from cluster.prompt.conversation import Conversation


def test_a_response_is_remembered_unless_that_is_declined() -> None:
    assert parse_responses(body()).hints.store
    assert parse_responses(body(store=None)).hints.store
    assert not parse_responses(body(store=False)).hints.store


def test_what_continues_a_response_may_say_nothing_new() -> None:
    read = parse_responses(body(input=[], previous_response_id="resp_1"))
    assert (read.messages, read.hints.previous_response) == ((), "resp_1")
    assert parse_responses(b'{"model":"m","previous_response_id":"resp_1"}').messages == ()


def heard(first: Conversation, memory: ResponseMemory) -> None:
    answer = Answer((Text("Yes"),), Ending("end"))
    remember(first, answer, memory, tenant="t", suffix="1")


def test_instructions_are_not_inherited_and_all_else_is() -> None:
    memory = ResponseMemory()
    order = {"role": "developer", "content": "D"}
    heard(parse_responses(body(instructions="I", input=[order, USER])), memory)
    second = parse_responses(body(instructions="J", input=[order, USER], previous_response_id="resp_1"))
    whole = resumed(second, memory, "t")
    assert whole.system == (Text("J"), Text("D"))
    assert [(message.role, message.path) for message in whole.messages] == [
        ("user", "previous_response_id[1]"),
        ("assistant", "previous_response_id[2]"),
        ("system", "input[0]"),
        ("user", "input[1]"),
    ]


@given(st.integers(0, 2), st.booleans(), st.booleans(), st.integers(1, 3))
@settings(deadline=None)
def test_continuing_is_the_same_as_sending_all_of_it(orders: int, instructed: bool, later: bool, times: int) -> None:
    """With the answers in between, and whatever stands at the beginning."""
    shared: dict[str, Any] = {"instructions": "I"} if instructed else {}
    memory = ResponseMemory()
    items: list[Any] = [{"role": "developer", "content": f"D{i}"} for i in range(orders)] + [USER]
    latest = parse_responses(body(input=items, **shared))
    for _ in range(times):
        heard(latest, memory)
        more = [{"role": "system", "content": "L"}] * later + [USER]
        items += [{"role": "assistant", "content": "Yes"}, *more]
        latest = resumed(parse_responses(body(input=more, previous_response_id="resp_1", **shared)), memory, "t")
    whole = parse_responses(body(input=items, **shared))
    assert latest.system == whole.system
    assert [(m.role, m.blocks) for m in latest.messages] == [(m.role, m.blocks) for m in whole.messages]


def test_a_response_that_is_not_remembered_is_refused_with_what_to_do() -> None:
    asked = parse_responses(body(previous_response_id="resp_1"))
    memory = ResponseMemory()
    heard(parse_responses(body()), memory)
    resumed(asked, memory, "t")
    for tenant, other in (("t", ResponseMemory()), ("another", memory)):
        with pytest.raises(UnknownResponse, match="`resp_1` is not remembered; send the whole input instead"):
            resumed(asked, other, tenant)
