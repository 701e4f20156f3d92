"""Tools of Messages and the choice among them, and what becomes of tools that only their vendor could run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.api.messages import parse_message
from cluster.prompt.conversation import Conversation, Tool, ToolChoice
from router.errors import InvalidRequest
from router.limits import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_TOOL_NAME_CHARS, MAX_TOOLS

SCHEMA: Any = {"type": "object", "properties": {"z": {}, "a": {"description": "é"}}}
READ: Any = {"name": "read", "description": "Reads.", "input_schema": SCHEMA}
SEARCH: Any = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
TOOLSET: Any = {"type": "mcp_toolset", "mcp_server_name": "s"}


def parsed(tools: Any, choice: Any = None) -> Conversation:
    fields = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    return parse_message(json.dumps({**fields, "tools": tools, "tool_choice": choice}).encode())


@pytest.mark.parametrize("more", [{}, {"type": None}, {"type": "custom"}, {"type": "novel_20270101"}])
def test_a_tool_with_a_schema_can_be_called(more: Any) -> None:
    read = parsed([{**READ, **more, "cache_control": {"type": "ephemeral"}, "input_examples": [{}]}])
    assert read.tools == (
        Tool(
            name="read",
            description="Reads.",
            parameters='{"type": "object", "properties": {"z": {}, "a": {"description": "é"}}}',
        ),
    )
    assert read.hints.ignored == ()


def test_tools_keep_the_clients_order_and_flags() -> None:
    read = parsed(
        [
            {"name": "z", "input_schema": {}, "defer_loading": True},
            {"name": "a", "input_schema": {}, "strict": True, "description": None},
        ]
    )
    assert read.tools == (Tool(name="z", deferred=True), Tool(name="a", strict=True))


@pytest.mark.parametrize("choice", [None, {"type": "auto"}, {"type": "none"}, {"type": "any"}])
def test_tools_that_run_elsewhere_are_left_out_and_named(choice: Any) -> None:
    read = parsed([SEARCH, READ, TOOLSET, SEARCH], choice)
    assert [tool.name for tool in read.tools] == ["read"]
    assert read.hints.ignored == ("tools[] of type web_search_20250305", "tools[] of type mcp_toolset")


@pytest.mark.parametrize(
    ("choice", "read"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "name": None}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any", "disable_parallel_tool_use": False}, ToolChoice(mode="any")),
        ({"type": "tool", "name": "read"}, ToolChoice(mode="tool", name="read")),
        ({"type": "none", "name": "read"}, ToolChoice(mode="none")),
    ],
)
def test_the_choice_is_read(choice: Any, read: ToolChoice) -> None:
    assert parsed([READ], choice).tool_choice == read


def test_a_deferred_tool_can_be_chosen() -> None:
    assert parsed([{**READ, "defer_loading": True}], {"type": "tool", "name": "read"}).tool_choice.name == "read"


def test_max_tools_stops_floods_of_tools() -> None:
    """MAX_TOOLS, whoever runs them."""
    assert len(parsed([{**READ, "name": f"t{i}"} for i in range(MAX_TOOLS)]).tools) == MAX_TOOLS
    with pytest.raises(InvalidRequest, match=f"tools: more than {MAX_TOOLS} tools"):
        parsed([SEARCH] * (MAX_TOOLS + 1))


@pytest.mark.parametrize(
    ("tools", "choice", "words"),
    [
        ([{"name": "n"}], None, "tools[0].input_schema: field required"),
        ([{"name": "n", "type": "custom"}], None, "tools[0].input_schema: field required"),
        ([{"name": "n", "input_schema": []}], None, "tools[0].input_schema: Expected `object`, got `array`"),
        ([{"input_schema": {}}], None, "tools[0].name: a tool needs a name"),
        ([{"name": "x" * (MAX_TOOL_NAME_CHARS + 1), "input_schema": {}}], None, "tools[0].name: `xxx"),
        ([READ, {**READ, "description": "again"}], None, "tools[1].name: two tools are called `read`"),
        ([{**READ, "strict": "yes"}], None, "tools[0].strict: Expected `bool | null`, got `str`"),
        (
            [{"name": "n", "input_schema": {"a": "x" * MAX_SCHEMA_BYTES}}],
            None,
            f"tools[0].input_schema: a schema has more than {MAX_SCHEMA_BYTES} bytes",
        ),
        (
            [{"name": "n", "input_schema": json.loads('{"a":' * MAX_SCHEMA_DEPTH + "{}" + "}" * MAX_SCHEMA_DEPTH)}],
            None,
            f"tools[0].input_schema: nested deeper than {MAX_SCHEMA_DEPTH} levels",
        ),
        ([READ], {"type": "tool", "name": "write"}, "tool_choice.name: no tool is called `write`"),
        ([READ], {"type": "tool"}, "tool_choice.name: no tool is called ``"),
        ([READ], {"type": "novel"}, "tool_choice.type: Invalid enum value 'novel'"),
        ([], {"type": "any"}, "tool_choice: `any` needs tools"),
        (None, {"type": "tool", "name": "read"}, "tool_choice.name: no tool is called `read`"),
        (
            [SEARCH, READ],
            {"type": "tool", "name": "web_search"},
            "tool_choice: `web_search` is a `web_search_20250305`: it runs on its vendor's servers and",
        ),
        ([SEARCH], {"type": "any"}, "tool_choice: `web_search_20250305`: it runs on its vendor's servers"),
        ([TOOLSET], {"type": "any"}, "tool_choice: `mcp_toolset`: it runs on its vendor's servers"),
    ],
)
def test_what_cannot_be_offered_or_chosen_is_refused(tools: Any, choice: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(tools, choice)
    assert str(caught.value).startswith(words)
