"""What finds a generated turn again, and the memory it is found in."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.prompt.conversation import ToolCall
from cluster.prompt.template import Turn
from cluster.prompt.turns import (
    KnownTurn,
    Place,
    TurnMemory,
    digest_at,
    digest_of_calls,
    digest_of_ids,
    digest_of_text,
    match,
    normal_arguments,
    pasts,
)
from router.limits import TURN_MEMORY_BYTES

if TYPE_CHECKING:
    import random

USER = Turn("user", "Fix it.")
CALL = ToolCall("toolu_1", "Bash", '{"command": "ls", "timeout": 10000}')
SAID = Turn("assistant", "I look.", reasoning="Hm.", calls=(CALL,))


def known(turn: Turn = SAID, *, place: Place | None = None, tokens: int = 3) -> KnownTurn:
    """What is remembered of a turn."""
    return KnownTurn(
        place=place or Place("a", "m", b"1"),
        calls=digest_of_calls(turn.calls),
        ids=digest_of_ids(turn.calls),
        reasoning=digest_of_text(turn.reasoning),
        prefix=b"p",
        prompt_bytes=4,
        opening="<|im_start|>assistant\n",
        tokens=bytes(4 * tokens),
    )


def place_of(*turns: Turn) -> bytes:
    """Where the last of the turns stands."""
    *_, past = pasts(turns[:-1])
    return digest_at(past, turns[-1])


@pytest.mark.parametrize(
    "arguments",
    [
        '{"timeout":10000,"command":"ls"}',
        '{"command": "ls", "timeout": 10000.0}',
        '  {"command":\n"\\u006cs", "timeout": 1e4}\n',
    ],
)
def test_arguments_are_known_in_any_form_of_the_same_json(arguments: str) -> None:
    returned = SAID._replace(calls=(ToolCall("toolu_1", "Bash", arguments),))
    assert match([known()], returned, ids_matter=False) is not None


@pytest.mark.parametrize(
    "arguments",
    ['{"command": "ls", "timeout": 10001}', '{"command": "ls", "timeout": "10000"}', '{"command": "ls"}', "ls", ""],
)
def test_other_arguments_are_another_turn(arguments: str) -> None:
    returned = SAID._replace(calls=(ToolCall("toolu_1", "Bash", arguments),))
    assert match([known()], returned, ids_matter=False) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def as_a_client_writes_it(value: Any, rng: random.Random) -> Any:
    """Keys in any order, whole floats as integers."""
    if isinstance(value, dict):
        items = [(key, as_a_client_writes_it(part, rng)) for key, part in value.items()]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [as_a_client_writes_it(part, rng) for part in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 and rng.random() < 0.5:
        return int(value)
    return value


@given(st.dictionaries(st.text(max_size=3), json_values, max_size=4), st.randoms(), st.booleans())
@settings(deadline=None)
def test_what_a_client_does_to_json_does_not_change_its_normal_form(
    value: dict[str, Any], rng: random.Random, escaped: bool
) -> None:
    generated = json.dumps(value, ensure_ascii=False)
    returned = json.dumps(as_a_client_writes_it(value, rng), ensure_ascii=escaped, separators=(",", ":"))
    try:
        generated.encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair: no client can send it
    assert normal_arguments(generated) == normal_arguments(returned)


def test_arguments_that_are_no_json_object_are_themselves() -> None:
    assert [normal_arguments(text) for text in (" ls ", "[2,1]", "{" * 100_000)] == ["ls", "[2,1]", "{" * 100_000]
    assert normal_arguments("") == normal_arguments("{}") == "{}"


def test_whitespace_around_a_text_and_ids_of_calls_do_not_matter() -> None:
    returned = SAID._replace(content="\n\nI look.\n", calls=(ToolCall("call_9", CALL.name, CALL.arguments),))
    assert place_of(USER, returned) == place_of(USER, SAID)
    assert match([known()], returned, ids_matter=False) is not None
    assert match([known()], returned, ids_matter=True) is None


@pytest.mark.parametrize(
    "turns",
    [
        (SAID,),
        (USER._replace(content="Fix it"), SAID),
        (USER._replace(role="system"), SAID),
        (USER, USER, SAID),
        (USER, SAID._replace(content="I looked.")),
        (USER, SAID._replace(calls=())),
        (USER, SAID._replace(calls=(ToolCall("toolu_1", "Read", CALL.arguments),))),
        (USER, SAID._replace(calls=(CALL, CALL))),
        (USER, SAID, Turn("tool", "ok", call_id="toolu_1", name="Bash"), SAID),
    ],
)
def test_another_text_or_another_past_is_another_place(turns: tuple[Turn, ...]) -> None:
    assert place_of(*turns) != place_of(USER, SAID)


def test_dropped_reasoning_of_the_past_leaves_a_turn_at_its_place() -> None:
    after = Turn("assistant", "Done.")
    assert place_of(USER, SAID, USER, after) == place_of(USER, SAID._replace(reasoning=""), USER, after)


def test_reasoning_that_comes_back_must_be_the_turns_own() -> None:
    assert match([known()], SAID._replace(reasoning="\nHm. "), ids_matter=False) is not None
    assert match([known()], SAID._replace(reasoning="Ha."), ids_matter=False) is None
    assert match([known(SAID._replace(reasoning=""))], SAID, ids_matter=False) is None


def test_reasoning_that_was_dropped_is_given_back_only_where_no_other_could_be_meant() -> None:
    silent, other = SAID._replace(reasoning=""), SAID._replace(reasoning="Ha.")
    other = other._replace(calls=(ToolCall("toolu_2", CALL.name, CALL.arguments),))
    mine, theirs = known(), known(other)
    assert match([mine], silent, ids_matter=False) is mine
    assert match([mine, theirs], silent, ids_matter=False) is mine  # its calls have these ids
    assert match([theirs, mine], silent._replace(calls=other.calls), ids_matter=False) is theirs
    strange = silent._replace(calls=(ToolCall("x", CALL.name, CALL.arguments),))
    assert match([mine, theirs], strange, ids_matter=False) is None
    said = [known(Turn("assistant", "Yes.", reasoning=thought)) for thought in ("A.", "B.")]
    assert match(said, Turn("assistant", "Yes."), ids_matter=False) is None
    assert match(said, Turn("assistant", "Yes.", reasoning="B."), ids_matter=False) is said[1]


def test_the_turns_of_one_tenant_cannot_push_out_those_of_another() -> None:
    """What `TURN_MEMORY_BYTES` bounds is shared fairly: who holds most loses first."""
    memory = TurnMemory(100 * known(tokens=100).cost_bytes)
    modest = [known(place=Place("modest", "m", bytes([i])), tokens=100) for i in range(40)]
    for turn in modest:
        memory.put(turn)
    for i in range(1_000):
        memory.put(known(place=Place("greedy", "m", i.to_bytes(2)), tokens=100))
    assert all(memory.at(turn.place) for turn in modest)
    memory.check_integrity()


def test_turn_memory_bytes_stop_turns_from_filling_the_host() -> None:
    huge = known(tokens=TURN_MEMORY_BYTES // 4)
    memory = TurnMemory(TURN_MEMORY_BYTES)
    memory.put(huge)
    assert not memory.at(huge.place)
    assert repr(memory) == f"TurnMemory(0 turns of 0 tenants, 0 of {TURN_MEMORY_BYTES} bytes)"


CAPACITY = 4 * known(tokens=4).cost_bytes
some_places = st.builds(Place, st.sampled_from("ab"), st.sampled_from("mn"), st.sampled_from([b"1", b"2"]))
some_turns = st.builds(
    known,
    st.sampled_from([SAID, SAID._replace(reasoning=""), SAID._replace(calls=())]),
    place=some_places,
    tokens=st.sampled_from([1, 3, 5, CAPACITY]),
)


class MemoryMachine(RuleBasedStateMachine):
    """Against one list per tenant, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = TurnMemory(CAPACITY)
        self.model: dict[str, OrderedDict[tuple[Place, bytes, bytes], KnownTurn]] = {}

    @rule(turn=some_turns)
    def put(self, turn: KnownTurn) -> None:
        self.memory.put(turn)
        kept = self.model.setdefault(turn.place.tenant, OrderedDict())
        kept.pop((turn.place, turn.calls, turn.reasoning), None)
        if turn.cost_bytes <= CAPACITY:
            kept[turn.place, turn.calls, turn.reasoning] = turn
        while sum(map(self.bytes_of, self.model)) > CAPACITY:
            _, largest = max((self.bytes_of(tenant), tenant) for tenant in self.model)
            self.model[largest].popitem(last=False)

    @rule(turn=some_turns)
    def use(self, turn: KnownTurn) -> None:
        self.memory.use(turn)
        key = (turn.place, turn.calls, turn.reasoning)
        kept = self.model.get(turn.place.tenant)
        if kept is not None and key in kept:
            kept.move_to_end(key)

    def bytes_of(self, tenant: str) -> int:
        return sum(turn.cost_bytes for turn in self.model[tenant].values())

    @invariant()
    def the_same_turns_are_known(self) -> None:
        self.memory.check_integrity()
        for tenant in "ab":
            kept = list(self.model.get(tenant, OrderedDict()).values())
            for place in (Place(tenant, model, digest) for model in "mn" for digest in (b"1", b"2")):
                assert set(map(id, self.memory.at(place))) == {id(turn) for turn in kept if turn.place == place}


MemoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTurnMemory = MemoryMachine.TestCase
