"""From messages to turns: every block has its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from cluster.prompt.conversation import Media, Text, Thinking, ToolCall, ToolReference, ToolRemoval, ToolResult
from cluster.prompt.json_text import arguments_text, function_of, object_of
from cluster.prompt.plain import join_lines
from cluster.prompt.template import Turn, chars_of, ending_of, listed_tools, turns_of
from tests.cluster.prompt.conversations import PLOT, READ, conversation, conversations

if TYPE_CHECKING:
    from cluster.prompt.conversation import Block, Conversation

CALL = ToolCall("call_1", "read", '{"p": 1}')


def test_blocks_start_on_lines_of_their_own() -> None:
    assert join_lines(["a", "b\n", "c", "", "d"]) == "a\nb\nc\nd"
    assert join_lines(["", "a"]) == "a"


def test_an_answer_is_one_text_however_it_comes_back() -> None:
    turns = list(turns_of(conversation([], [("assistant", ["One", " and two"]), ("user", ["x", "y"])])))
    assert [turn.content for turn in turns] == ["One and two", "x\ny"]


def test_thoughts_text_and_calls_of_an_answer_have_a_place_each() -> None:
    said: list[Block | str] = [Thinking("First."), "One", CALL, Thinking("Then."), " two", CALL]
    assert list(turns_of(conversation([], [("assistant", said)]))) == [
        Turn("assistant", "One two", "First.\nThen.", (CALL, CALL))
    ]


def test_results_come_first_each_with_the_name_of_its_tool() -> None:
    result = ToolResult("call_1", (Text("up"), Text("down")))
    messages = [("assistant", [CALL]), ("user", ["And?", result, ToolResult("call_9", ())])]
    assert list(turns_of(conversation(["Be brief."], messages)))[2:] == [  # type: ignore[arg-type]
        Turn("tool", "up\ndown", call_id="call_1", name="read"),
        Turn("tool", "", call_id="call_9"),
        Turn("user", "And?"),
    ]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("no such file", "Error: no such file"),
        ("Error: gone", "Error: gone"),
        ("<tool_use_error>x", "<tool_use_error>x"),
    ],
)
def test_a_failed_result_says_so(text: str, read: str) -> None:
    (turn,) = turns_of(conversation([], [("user", [ToolResult("call_1", (Text(text),), is_error=True)])]))
    assert turn.content == read


def test_what_no_rule_has_rewritten_is_still_said_in_words() -> None:
    blocks: list[Block | str] = [Media("document"), ToolReference("plot"), ToolRemoval("read")]
    (turn,) = turns_of(conversation([], [("user", blocks)]))
    assert turn.content.split("\n") == [
        "[document left out: this model reads text only]",
        "plot",
        "The tool read can no longer be called.",
    ]


def test_only_a_last_assistant_message_without_calls_is_continued() -> None:
    assert ending_of(conversation([], [("user", ["Hi"]), ("assistant", ["Yes, "])])) == "continue_last"
    assert ending_of(conversation([], [("user", ["Hi"]), ("assistant", ["Yes", CALL])])) == "open_turn"
    assert ending_of(conversation([], [("user", ["Hi"])])) == "open_turn"
    assert ending_of(conversation()) == "open_turn"


def test_deferred_tools_are_not_listed() -> None:
    assert listed_tools(conversation([], [], [PLOT, READ])) == (READ,)


@given(conversation=conversations)
@settings(deadline=None, max_examples=200)
def test_the_length_of_a_conversation_counts_all_that_is_rendered(conversation: Conversation) -> None:
    turns = list(turns_of(conversation))
    texts = [text for turn in turns for text in (turn.content, turn.reasoning)]
    calls = [text for turn in turns for call in turn.calls for text in (call.name, call.arguments)]
    tools = [text for tool in listed_tools(conversation) for text in (tool.name, tool.description, tool.parameters)]
    assert chars_of(conversation) == len("".join([*texts, *calls, *tools]))


def test_arguments_keep_order_and_letters_and_lose_only_white_space() -> None:
    assert arguments_text('{"é":"\\u00fc/\\/",  "a": 1.0, "n": null}') == '{"é": "ü//", "a": 1.0, "n": null}'
    assert arguments_text(" ") == "{}"


@pytest.mark.parametrize("text", ["[1]", "{broken", '{"a": "\\ud800"}', "null", "[" * 100_000, '{"a":' * 100_000])
def test_arguments_that_are_no_object_stay_as_they_are(text: str) -> None:
    assert object_of(text) is None
    assert arguments_text(text) == text


def test_a_tool_is_told_with_its_keys_in_the_clients_order() -> None:
    assert function_of(READ) == {
        "name": "read",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"p": {}, "é": {}}},
    }
    assert list(function_of(READ)["parameters"]) == ["type", "properties"]
