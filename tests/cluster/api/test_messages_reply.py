"""Answers of Messages: streamed and whole they say the same, block by block."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings

from cluster.api.call_ids import native
from cluster.api.dialect import Answer, AnswerId
from cluster.api.messages_reply import MESSAGES, MessagesReply
from cluster.output.assembly import Ending, Piece, Usage
from cluster.output.events import CallArguments, CallBroken, CallEnd, CallStart, TextDelta, ThinkingDelta
from cluster.prompt.conversation import Conversation, Text, Thinking, ToolCall
from router.errors import PromptTooLong, ReplicaDied
from tests.cluster.api.streams import Told, data_of, told

if TYPE_CHECKING:
    from cluster.output.events import Event

USAGE = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=3, reasoning_tokens=2)
WEATHER = (CallStart("c1", "weather"), CallArguments('{"city":'), CallArguments(' "Lund"}'), CallEnd())


def reply(*, hide_thinking: bool = False) -> MessagesReply:
    conversation = Conversation(api="messages", model="m", hide_thinking=hide_thinking, stream=True)
    return MessagesReply(conversation, AnswerId("1", 1700000000))


def said(*events: Event, hide_thinking: bool = False) -> list[dict[str, Any]]:
    """What a stream says of events, between its start and its end."""
    talker = reply(hide_thinking=hide_thinking)
    spoken = b"".join(talker.say(Piece((event,)), 0) for event in events)
    return data_of(spoken + talker.say(Piece((), Ending("end")), 0) + talker.finish(USAGE))[:-2]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("content_block_") for event in events]


class Reader:
    """What a client does with a stream, and refuses of one."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self.blocks: list[dict[str, Any]] = []
        self.inputs: dict[int, str] = {}
        self.open = False
        self.ended = False

    def read(self, event: dict[str, Any]) -> None:
        assert not self.ended
        match event["type"]:
            case "message_start":
                assert not self.message
                self.message = event["message"]
            case "content_block_start":
                assert not self.open
                assert event["index"] == len(self.blocks)
                self.open = True
                self.blocks.append(event["content_block"])
            case "content_block_delta":
                assert self.open
                assert event["index"] == len(self.blocks) - 1
                self.add(event["delta"])
            case "content_block_stop":
                assert self.open
                assert event["index"] == len(self.blocks) - 1
                assert self.blocks[-1].get("signature", "present")
                self.open = False
            case "message_delta":
                assert not self.open
                self.message |= {**event["delta"], "usage": event["usage"]}
            case kind:
                assert kind == "message_stop"
                self.ended = True

    def add(self, delta: dict[str, str]) -> None:
        block = self.blocks[-1]
        match delta["type"], block["type"]:
            case ("text_delta", "text") | ("thinking_delta", "thinking"):
                assert not block.get("signature")
                block[block["type"]] += delta[block["type"]]
            case "signature_delta", "thinking":
                assert not block["signature"]
                block["signature"] = delta["signature"]
            case kind, holder:
                assert (kind, holder) == ("input_json_delta", "tool_use")
                at = len(self.blocks) - 1
                self.inputs[at] = self.inputs.get(at, "") + delta["partial_json"]

    def whole(self) -> dict[str, Any]:
        """The message, without calls whose input never became JSON."""
        assert self.ended
        content: list[dict[str, Any]] = []
        for at, block in enumerate(self.blocks):
            if block["type"] == "tool_use":
                assert block["input"] == {}
                try:
                    content.append({**block, "input": json.loads(self.inputs.get(at) or "{}")})
                except ValueError:
                    continue
            else:
                content.append(block)
        return {**self.message, "content": content}


def read_whole(told: Told, *, hide_thinking: bool) -> dict[str, Any]:
    whole = reply(hide_thinking=hide_thinking).whole([told.answer], USAGE)
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(whole))
    return decoded


@given(told=told(), hide_thinking=...)
@settings(deadline=None)
def test_a_stream_says_what_the_whole_answer_says(told: Told, hide_thinking: bool) -> None:
    talker, reader = reply(hide_thinking=hide_thinking), Reader()
    stream = talker.start(USAGE) + b"".join(talker.say(piece, 0) for piece in told.pieces) + talker.finish(USAGE)
    for event in data_of(stream):
        reader.read(event)
    assert reader.whole() == read_whole(told, hide_thinking=hide_thinking)


@given(told=told())
@settings(deadline=None, max_examples=50)
def test_every_event_is_named_by_its_type_and_nothing_is_done_twice(told: Told) -> None:
    talker = reply()
    stream = talker.start(USAGE) + b"".join(talker.say(piece, 0) for piece in told.pieces) + talker.finish(USAGE)
    assert b"[DONE]" not in stream
    for event in stream.decode().rstrip("\n").split("\n\n"):
        name, data = event.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


def test_the_start_tells_the_usage_and_nothing_of_the_answer() -> None:
    (start,) = data_of(reply().start(USAGE))
    assert start == {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 6,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 4,
                "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
                "output_tokens": 3,
                "output_tokens_details": {"thinking_tokens": 2},
            },
        },
    }


def test_input_and_cached_tokens_add_up_to_the_prompt() -> None:
    usage = reply().whole([Answer((), Ending("end"))], USAGE)["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"] == 10


def test_reasoning_is_signed_once_before_its_block_ends() -> None:
    first, delta, more, signature, stop, *_ = said(ThinkingDelta("a"), ThinkingDelta("b"), TextDelta("c"))
    assert first["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert (delta["delta"], more["delta"]["thinking"]) == ({"type": "thinking_delta", "thinking": "a"}, "b")
    assert signature["delta"]["type"] == "signature_delta"
    assert signature["delta"]["signature"]
    assert (stop["type"], stop["index"]) == ("content_block_stop", 0)


def test_hidden_reasoning_is_a_signed_block_without_words() -> None:
    hidden = said(ThinkingDelta("secret"), TextDelta("c"), hide_thinking=True)
    assert kinds(hidden) == ["start", "delta", "stop", "start", "delta", "stop"]
    assert hidden[1]["delta"]["type"] == "signature_delta"
    assert "secret" not in json.dumps(hidden)
    answer = Answer((Thinking("secret"), Text("c")), Ending("end"))
    thinking, text = reply(hide_thinking=True).whole([answer], USAGE)["content"]
    assert (thinking["type"], thinking["thinking"], text["text"]) == ("thinking", "", "c")
    assert thinking["signature"] == hidden[1]["delta"]["signature"]


def test_input_of_a_call_goes_out_as_it_comes() -> None:
    start, first, second, stop = said(*WEATHER)
    assert start["content_block"] == {"type": "tool_use", "id": "c1", "name": "weather", "input": {}}
    assert first["delta"] == {"type": "input_json_delta", "partial_json": '{"city":'}
    assert second["delta"]["partial_json"] == ' "Lund"}'
    assert stop["type"] == "content_block_stop"


def test_parallel_calls_follow_each_other_with_their_own_indices() -> None:
    events = said(TextDelta("Two."), *WEATHER, CallStart("c2", "weather"), CallArguments("{}"), CallEnd())
    starts = [(event["index"], event["content_block"]) for event in events if event["type"] == "content_block_start"]
    assert [(index, block.get("id")) for index, block in starts] == [(0, None), (1, "c1"), (2, "c2")]


def test_text_behind_a_call_is_a_block_of_its_own() -> None:
    events = said(TextDelta("a"), *WEATHER, TextDelta("b"), TextDelta("c"))
    assert kinds(events) == [
        *["start", "delta", "stop"],
        *["start", "delta", "delta", "stop"],
        *["start", "delta", "delta", "stop"],
    ]
    assert events[-1]["index"] == 2


def test_an_id_that_clients_refuse_is_mapped_and_read_back() -> None:
    start, *_ = said(CallStart("functions.weather:0", "weather"), CallArguments("{}"), CallEnd())
    shown = start["content_block"]["id"]
    assert re.fullmatch(r"[A-Za-z0-9_-]+", shown)
    assert native(shown) == "functions.weather:0"
    answer = Answer((ToolCall("functions.weather:0", "weather", "{}"),), Ending("tool_use"))
    assert reply().whole([answer], USAGE)["content"][0]["id"] == shown


@pytest.mark.parametrize("arguments", [[], ['{"a": 1'], ['{"a":', " 1}"], ["{"]])
def test_nobody_can_take_the_input_of_a_broken_call_for_json(arguments: list[str]) -> None:
    """Clients read no input at all as an empty object, and would run the call."""
    events = said(CallStart("c", "run"), *map(CallArguments, arguments), CallBroken(), TextDelta("source"))
    deltas = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
    text = "".join(deltas)
    assert text.startswith("".join(arguments))
    with pytest.raises(ValueError, match=r"Expecting|Extra data"):
        json.loads(text)
    assert kinds(events)[-4:] == ["stop", "start", "delta", "stop"]


def test_a_broken_call_is_not_in_the_whole_answer() -> None:
    answer = Answer((Text("source"),), Ending("end"))
    whole = reply().whole([answer], USAGE)
    assert (whole["content"], whole["stop_reason"]) == ([{"type": "text", "text": "source"}], "end_turn")


def test_input_is_as_it_was_generated() -> None:
    generated = '{"b": 1.0, "a": 12345678901234567890123, "c": "\\u00e9"}'
    answer = Answer((ToolCall("c", "n", generated),), Ending("tool_use"))
    assert generated.encode() in msgspec.json.encode(reply().whole([answer], USAGE))


@pytest.mark.parametrize(
    ("ending", "reason", "stop"),
    [
        (Ending("end"), "end_turn", None),
        (Ending("length"), "max_tokens", None),
        (Ending("stop_sequence", "x"), "stop_sequence", "x"),
        (Ending("tool_use"), "tool_use", None),
        (Ending("context_window"), "model_context_window_exceeded", None),
    ],
)
def test_every_ending_has_its_reason(ending: Ending, reason: str, stop: str | None) -> None:
    talker = reply()
    talker.say(Piece((), ending), 0)
    delta, last = data_of(talker.finish(USAGE))
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": stop}
    assert last == {"type": "message_stop"}
    whole = reply().whole([Answer((), ending)], USAGE)
    assert (whole["stop_reason"], whole["stop_sequence"], whole["content"]) == (reason, stop, [])


def test_the_last_usage_is_cumulative() -> None:
    talker = reply()
    talker.start(Usage(10, 8, 0))
    talker.say(Piece((), Ending("end")), 0)
    delta, _ = data_of(talker.finish(USAGE))
    assert (delta["usage"]["input_tokens"], delta["usage"]["cache_read_input_tokens"]) == (6, 4)
    assert (delta["usage"]["output_tokens"], delta["usage"]["output_tokens_details"]) == (3, {"thinking_tokens": 2})


@pytest.mark.parametrize(
    ("begun", "ends"),
    [
        ((), []),
        ((TextDelta("a"),), ["stop"]),
        ((ThinkingDelta("a"),), ["delta", "stop"]),
        (WEATHER[:2], ["stop"]),
        (WEATHER, []),
    ],
)
def test_an_error_closes_the_open_block_first(begun: tuple[Event, ...], ends: list[str]) -> None:
    talker = reply()
    talker.say(Piece(begun), 0)
    *closing, error = data_of(talker.error(ReplicaDied("secret")))
    assert kinds(closing) == ends
    assert error == {
        "type": "error",
        "error": {"type": "api_error", "message": "the replica failed, try again"},
        "request_id": "req_1",
    }


def test_a_ping_is_an_event() -> None:
    assert reply().ping() == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_clients_parse() -> None:
    status, _, body = MESSAGES.error(PromptTooLong(5000, 4095), "req_1")
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert body["error"]["message"] == "prompt is too long: 5000 tokens > 4095 maximum"
