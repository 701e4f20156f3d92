"""Forms that answers must have, on a real engine: what is generated under them is read as what was asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cluster.models.constraint import constraint
from cluster.output.families import Family
from cluster.output.resume import rest_of
from cluster.prompt.conversation import Conversation, OutputFormat, Text, Tool, ToolCall, ToolChoice
from router.errors import ReplicaDied
from tests.cluster.output.reading import PROMPT, Model, model_with

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.output.events import Said
    from tests.conformance.engines import Bench

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.parametrize("bench", [pytest.param("vllm", marks=pytest.mark.vllm)], indirect=True),
]

SCHEMA = '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false}'
TOOLS = tuple(Tool(name=name, parameters=SCHEMA, strict=True) for name in ("get", "put"))
OFFERED = Conversation(api="messages", model="tiny", tools=TOOLS)


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Model:
    return model_with(tiny_model, Family("hermes", "qwen3"))


def answered(bench: Bench, tiny: Model, conversation: Conversation, prompt: str = PROMPT) -> list[Said]:
    """What a model of random weights says when the form is all that it knows."""
    packed = b"".join(tiny.tokens(prompt))
    form = constraint(conversation, packed, tiny.parsers)
    wishes: dict[str, Any] = {"temperature": 1.0, "seed": 1, "ignore_eos": False, "structured": form}
    generation = bench.generation([1], max_tokens=4000, **wishes)
    deltas = bench.run(bench.deltas(msgspec.structs.replace(generation, tokens=packed)))
    assert deltas[-1].finish_reason == "stop"
    tokens = b"".join([delta.tokens for delta in deltas])
    read = [tokens[at : at + 4] for at in range(0, len(tokens), 4)]
    return tiny.blocks(read, prompt=prompt, conversation=conversation)


def test_an_answer_goes_on_behind_what_another_engine_said_of_its_form(bench: Bench, tiny: Model) -> None:
    """A call in the middle of its name or arguments, a JSON text in the middle of a key: with the form advanced over
    its beginning, the rest is token for token that of the unbroken run. Left to itself, the form would begin anew."""
    calls = wish(tool_choice=ToolChoice(mode="any", parallel=False))
    for conversation in (calls, wish(tools=(), output_format=OutputFormat(schema=SCHEMA))):
        prompt = b"".join(tiny.tokens(PROMPT))
        form = constraint(conversation, prompt, tiny.parsers)
        asked = msgspec.structs.replace(
            bench.generation([1], max_tokens=60, ignore_eos=False, structured=form), tokens=prompt
        )
        unbroken = bench.run(bench.deltas(asked))
        whole = b"".join([delta.tokens for delta in unbroken])
        for cut in range(4, len(whole), max(4, len(whole) // 48 * 4)):
            rest = rest_of(asked.sampling, made_tokens=cut // 4)
            begun = msgspec.structs.replace(asked, tokens=prompt + whole[:cut], sampling=rest, resumed_tokens=cut // 4)
            deltas = bench.run(bench.deltas(begun))
            assert whole[:cut] + b"".join([delta.tokens for delta in deltas]) == whole, cut
            assert deltas[-1].finish_reason == unbroken[-1].finish_reason
        anew = msgspec.structs.replace(asked, tokens=prompt + whole[:16])
        assert whole[:16] + b"".join([delta.tokens for delta in bench.run(bench.deltas(anew))]) != whole


def test_a_beginning_that_the_form_does_not_allow_fails_on_the_replicas_account(bench: Bench, tiny: Model) -> None:
    """It was said by another engine under the same form, so it is not the client's fault."""
    form = constraint(wish(tool_choice=ToolChoice(mode="any")), b"".join(tiny.tokens(PROMPT)), tiny.parsers)
    asked = bench.generation([300, 301, 302], max_tokens=50, structured=form)
    with pytest.raises(ReplicaDied):
        bench.run(bench.deltas(msgspec.structs.replace(asked, resumed_tokens=2)))


def wish(**fields: Any) -> Conversation:
    return msgspec.structs.replace(OFFERED, **fields)


def test_a_call_that_must_be_made_is_made(bench: Bench, tiny: Model) -> None:
    blocks = answered(bench, tiny, wish(tool_choice=ToolChoice(mode="any")))
    assert blocks
    for block in blocks:
        assert isinstance(block, ToolCall)
        assert json.loads(block.arguments)["a"] in (1, 2)


def test_the_tool_that_was_named_is_called_once(bench: Bench, tiny: Model) -> None:
    [block] = answered(bench, tiny, wish(tool_choice=ToolChoice(mode="tool", name="put", parallel=False)))
    assert isinstance(block, ToolCall)
    assert block.name == "put"


def test_beside_a_format_tools_may_still_be_called(bench: Bench, tiny: Model) -> None:
    either = wish(output_format=OutputFormat(schema=SCHEMA))
    assert all(isinstance(block, ToolCall) or json.loads(block.text) for block in answered(bench, tiny, either))


def test_an_answer_is_in_its_format(bench: Bench, tiny: Model) -> None:
    [block] = answered(bench, tiny, wish(tools=(), output_format=OutputFormat(schema=SCHEMA)))
    assert isinstance(block, Text)
    assert json.loads(block.text)["a"] in (1, 2)
