"""The form that an answer must have, and what it means for reasoning."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cluster.models.constraint import constraint
from cluster.output.constraints import RULE, direct
from cluster.output.families import Family
from cluster.prompt.conversation import OutputFormat, ToolChoice
from router.errors import InvalidRequest
from tests.cluster.output.reading import GET, NO_TOOLS, OFFERED, PROMPT, Model, model_with
from workers.engine import Structured

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.prompt.conversation import Conversation

SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}}'


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Model:
    return model_with(tiny_model, Family("hermes", "qwen3"))


def wish(conversation: Conversation = OFFERED, **fields: Any) -> Conversation:
    return msgspec.structs.replace(conversation, **fields)


def form(model: Model, conversation: Conversation, prompt: str = PROMPT) -> Structured | None:
    return constraint(conversation, b"".join(model.tokens(prompt)), model.parsers)


def shape(model: Model, conversation: Conversation, prompt: str = PROMPT) -> dict[str, Any]:
    """The structural tag's format."""
    asked = form(model, conversation, prompt)
    assert asked is not None
    assert asked.kind == "structural_tag"
    inner: dict[str, Any] = json.loads(asked.spec)["format"]
    return inner


def begins(calls: dict[str, Any]) -> set[str]:
    return {tag["begin"].split('"name": ')[1].split(",")[0] for tag in calls["tags"]}


def test_most_answers_are_free(tiny: Model) -> None:
    assert form(tiny, OFFERED) is None
    assert form(tiny, NO_TOOLS) is None
    assert form(tiny, wish(tool_choice=ToolChoice(mode="none"))) is None
    assert form(tiny, wish(NO_TOOLS, tool_choice=ToolChoice(mode="any"))) is None


def test_an_output_format_is_a_schema(tiny: Model) -> None:
    assert form(tiny, wish(NO_TOOLS, output_format=OutputFormat(schema=SCHEMA))) == Structured(kind="json", spec=SCHEMA)


def test_a_call_that_must_be_made_is_written_as_the_family_writes_it(tiny: Model) -> None:
    """And read by the same parser as any other."""
    calls = shape(tiny, wish(tool_choice=ToolChoice(mode="any")))
    assert begins(calls) == {'"get"', '"put"'}
    assert calls["at_least_one"]
    assert not calls["stop_after_first"]
    assert all(tag["begin"].startswith("<tool_call>") for tag in calls["tags"])


def test_one_tool_by_name_is_that_tool(tiny: Model) -> None:
    assert begins(shape(tiny, wish(tool_choice=ToolChoice(mode="tool", name="put")))) == {'"put"'}


def test_without_parallel_calls_the_first_is_the_last(tiny: Model) -> None:
    assert shape(tiny, wish(tool_choice=ToolChoice(mode="any", parallel=False)))["stop_after_first"]
    free = shape(tiny, wish(tool_choice=ToolChoice(parallel=False)))
    assert (free["type"], free["at_least_one"], free["stop_after_first"]) == ("triggered_tags", False, True)


def test_arguments_are_objects_and_those_of_strict_tools_fit_their_schema(tiny: Model) -> None:
    strict = msgspec.structs.replace(GET, strict=True)
    calls = shape(tiny, wish(tools=(strict, OFFERED.tools[1]), tool_choice=ToolChoice(mode="any")))
    schemas = {tag["begin"].split('"')[3]: tag["content"]["json_schema"] for tag in calls["tags"]}
    assert schemas["put"] == {"type": "object", "additionalProperties": True}
    assert schemas["get"]["properties"] == json.loads(GET.parameters)["properties"]


def test_an_output_format_beside_tools_leaves_both_ways_open(tiny: Model) -> None:
    """An agent calls its tools first and answers in the format then."""
    either = shape(tiny, wish(output_format=OutputFormat(schema=SCHEMA)))
    assert either["type"] == "or"
    calls, answer = either["elements"]
    assert begins(calls) == {'"get"', '"put"'}
    assert answer == {"type": "json_schema", "json_schema": json.loads(SCHEMA)}


def test_a_form_waits_for_reasoning_that_the_prompt_has_begun(tiny: Model) -> None:
    """Some templates begin it whatever is asked."""
    sequence = shape(tiny, wish(NO_TOOLS, output_format=OutputFormat(schema=SCHEMA)), PROMPT + "<think>\n")
    reasoning, answer = sequence["elements"]
    assert (sequence["type"], reasoning["end"]) == ("sequence", "</think>")
    assert answer == {"type": "json_schema", "json_schema": json.loads(SCHEMA)}


def test_a_model_that_cannot_be_made_to_call_says_so(tiny_model: Path) -> None:
    for parsers in (None, model_with(tiny_model, Family(None, "qwen3")).parsers):
        with pytest.raises(InvalidRequest, match="tool_choice"):
            constraint(wish(tool_choice=ToolChoice(mode="any")), b"", parsers)


@pytest.mark.parametrize(
    "fields", [{"output_format": OutputFormat(schema=SCHEMA)}, {"tool_choice": ToolChoice(mode="tool", name="get")}]
)
def test_an_answer_that_must_have_a_form_is_asked_for_without_reasoning(fields: dict[str, Any]) -> None:
    conversation, changes = direct(wish(**fields))
    assert conversation.thinking == "off"
    assert [(change.rule, change.path, change.after) for change in changes] == [(RULE, "thinking", "off")]
    assert direct(conversation) == (conversation, ())


def test_every_other_answer_may_begin_with_reasoning() -> None:
    for conversation in (OFFERED, NO_TOOLS, wish(tool_choice=ToolChoice(parallel=False)), wish(thinking="on")):
        assert direct(conversation) == (conversation, ())
