"""Answers of Responses: streamed and whole they say the same, in the shapes that agents and OpenAI's SDK read."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from cluster.api.dialect import Answer, AnswerId
from cluster.api.responses import parse_responses
from cluster.api.responses_items import sealed
from cluster.api.responses_output import free_input
from cluster.api.responses_reply import RESPONSES, ResponsesReply
from cluster.output.assembly import Ending, Piece, ScoredToken, Usage
from cluster.output.events import (
    CallArguments,
    CallBroken,
    CallEnd,
    CallStart,
    TextDelta,
    ThinkingDelta,
    blocks_of,
    merged,
)
from router.errors import NoReplica, PromptTooLong, ReplicaDied
from router.limits import MAX_ECHOED_BYTES
from tests.cluster.api.streams import Told, data_of, told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.output.events import Event

USAGE = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=3, reasoning_tokens=2)
ID = AnswerId("1", 1700000000)
READ: Any = {"type": "function", "name": "read", "parameters": {}}
TOOLS: Any = [
    READ,
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "agents", "description": "A", "tools": [READ, {"type": "custom", "name": "patch"}]},
]
CALLED = (CallStart("c1", "read"), CallArguments('{"a": '), CallArguments("1.0}"), CallEnd())


def reply(**fields: Any) -> ResponsesReply:
    body = {"model": "m", "input": "x", "tools": TOOLS, **fields}
    return ResponsesReply(parse_responses(json.dumps(body).encode()), ID)


def whole(*events: Event, ending: str = "end", **fields: Any) -> dict[str, Any]:
    return reply(**fields).whole([Answer(blocks_of(events), Ending(ending))], USAGE)  # type: ignore[arg-type]


def streamed(pieces: Sequence[Piece], **fields: Any) -> list[dict[str, Any]]:
    talker = reply(**fields)
    said = talker.start(USAGE) + b"".join(talker.say(piece, 0) for piece in pieces) + talker.finish(USAGE)
    return data_of(said)


def spoken(*events: Event, **fields: Any) -> list[dict[str, Any]]:
    return streamed([Piece(merged(events), Ending("end"))], **fields)[2:-1]


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def folded(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client makes of the deltas: the items in order. Each `done` must say what they added up to."""
    items: dict[int, dict[str, Any]] = {}
    for event in events:
        place: int = event.get("output_index", -1)
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert place not in items
                items[place] = {**event["item"]}
            case "content_part.added":
                assert items[place]["id"] == event["item_id"]
                items[place]["content"] = [{**event["part"]}]
            case "output_text.delta" | "reasoning_text.delta":
                items[place]["content"][0]["text"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert items[place]["content"][0]["text"] == event["text"]
            case "function_call_arguments.delta":
                items[place]["arguments"] += event["delta"]
            case "function_call_arguments.done":
                assert items[place]["arguments"] == event["arguments"]
            case "custom_tool_call_input.delta":
                items[place]["input"] += event["delta"]
            case "output_item.done":
                told_so_far = {**items[place], "status": event["item"].get("status")}
                assert said_by(told_so_far) == said_by(event["item"])
                items[place] = event["item"]
    return list(items.values())


def said_by(item: dict[str, Any]) -> Any:
    """All that matters of an item but its token scores, which come when it is done."""
    parts = [(part["type"], part["text"]) for part in item.get("content", ())]
    return [*(item.get(name) for name in ("id", "type", "status", "call_id", "name", "arguments", "input")), parts]


def without_ids(items: Sequence[dict[str, Any]]) -> list[Any]:
    return [said_by({**item, "id": None}) for item in items]


@given(told())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_stream_adds_up_to_the_whole_answer(answer: Told) -> None:
    """Calls that broke are left out: the last event has the same items as a whole answer."""
    events = streamed(answer.pieces)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    expected = reply().whole([answer.answer], USAGE)
    final = events[-1]["response"]
    counted = [item for item in folded(events) if item["type"] != "function_call" or item["status"] == "completed"]
    assert final["output"] == counted
    assert without_ids(final["output"]) == without_ids(expected["output"])
    assert {**final, "output": []} == {**expected, "output": []}
    assert events[-1]["type"] == f"response.{expected['status']}"
    assert len({item["id"] for item in folded(events)}) == len(folded(events))


def test_a_call_that_broke_after_it_was_announced_is_closed_and_can_be_run_by_nobody() -> None:
    """Its arguments are no JSON, and what it was is told as text. The last event does not count it."""
    said = streamed([Piece((*CALLED[:2], CallBroken(), TextDelta("source")), Ending("end"))])
    call, message = folded(said)
    assert (call["status"], call["arguments"]) == ("incomplete", '{"a": ')
    assert said[-1]["response"]["output"] == [message]


def test_a_call_that_broke_before_its_first_argument_was_never_said() -> None:
    """Arguments that are empty could be taken for none wanted."""
    said = spoken(CALLED[0], CallArguments(""), CallBroken(), TextDelta("source"))
    assert {event["item"]["type"] for event in said if "item" in event} == {"message"}


def test_the_events_of_a_text() -> None:
    said = spoken(TextDelta("a"), TextDelta("b"))
    assert kinds(said) == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert all(event["item_id"] == "msg_1_0" for event in said[1:-1])
    part = {"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}
    item = {"id": "msg_1_0", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert said[-1]["item"] == item


def test_the_events_of_reasoning() -> None:
    said = spoken(ThinkingDelta("a"), TextDelta("b"), include=["reasoning.encrypted_content"])
    assert kinds(said)[:6] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert said[5]["item"] == {
        "id": "rs_1_0",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "a"}],
        "encrypted_content": sealed("a"),
    }
    assert "encrypted_content" not in spoken(ThinkingDelta("a"))[-1]["item"]


def test_the_events_of_a_call() -> None:
    talker = reply()
    said = data_of(b"".join(talker.say(Piece((event,)), 0) for event in CALLED))
    assert kinds(said) == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert said[-1]["item"] == {
        "id": "fc_1_0",
        "type": "function_call",
        "status": "completed",
        "call_id": "c1",
        "name": "read",
        "arguments": '{"a": 1.0}',
    }


def test_a_tool_of_a_namespace_is_called_by_the_clients_own_names() -> None:
    (item,) = whole(CallStart("c1", "agents__read"), CallArguments("{}"), CallEnd())["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "agents", "read")
    (item,) = whole(CallStart("c1", "agents__patch"), CallArguments('{"input":"x"}'), CallEnd())["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "agents", "patch")
    (item,) = whole(CallStart("c1", "nobody__knows"), CallArguments("{}"), CallEnd())["output"]
    assert (item["name"], item.get("namespace")) == ("nobody__knows", None)


def test_a_free_form_tool_is_given_its_text() -> None:
    events: list[Event] = [
        CallStart("c1", "patch"),
        CallArguments('{"inp'),
        CallArguments('ut": "a\\n\\"b\\""}'),
        CallEnd(),
    ]
    said = spoken(*events)
    assert kinds(said) == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    item = {"id": "ctc_1_0", "type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a\n"b"'}
    assert said[-1]["item"] == item == whole(*events)["output"][0]


def test_a_free_form_call_that_broke_was_never_said() -> None:
    said = spoken(CallStart("c1", "patch"), CallArguments('{"input": "a'), CallBroken(), TextDelta("source"))
    assert {event["item"]["type"] for event in said if "item" in event} == {"message"}


@pytest.mark.parametrize(
    ("arguments", "said"), [('{"input":"x"}', "x"), ('{"patch":"x"}', '{"patch":"x"}'), ("x", "x")]
)
def test_input_that_is_not_where_it_should_be_is_taken_as_it_is(arguments: str, said: str) -> None:
    assert free_input(arguments) == said


@pytest.mark.parametrize(
    ("ending", "status", "reason"),
    [
        ("end", "completed", None),
        ("tool_use", "completed", None),
        ("stop_sequence", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("context_window", "incomplete", "max_output_tokens"),
    ],
)
def test_how_answers_end(ending: str, status: str, reason: str | None) -> None:
    said = whole(ThinkingDelta("t"), TextDelta("x"), ending=ending)
    assert (said["status"], (said["incomplete_details"] or {}).get("reason")) == (status, reason)
    assert [item["status"] for item in said["output"]] == ["completed", status]


def test_a_complete_call_stays_complete_in_an_answer_cut_short() -> None:
    assert [item["status"] for item in whole(*CALLED, ending="length")["output"]] == ["completed"]


def test_usage_names_what_was_cached_and_what_was_thought() -> None:
    assert whole()["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 13,
    }


def test_a_response_repeats_small_fields_of_its_request_and_is_what_the_sdk_reads() -> None:
    fields: Any = {"metadata": {"a": "b"}, "temperature": 0.5, "previous_response_id": "resp_0", "tool_choice": "none"}
    said = whole(ThinkingDelta("t"), TextDelta("x"), *CALLED, **fields)
    assert {name: said[name] for name in fields} == fields
    assert said["tools"] == TOOLS
    Response.model_validate(said, strict=True)
    assert (said["id"], said["object"], said["created_at"], said["model"]) == ("resp_1", "response", 1700000000, "m")


def test_a_large_field_is_not_repeated_in_every_event() -> None:
    instructions = "x" * MAX_ECHOED_BYTES
    assert whole(instructions=instructions)["instructions"] is None
    assert whole(instructions="x")["instructions"] == "x"


def test_the_first_events_hold_the_empty_response() -> None:
    created, progress = data_of(reply().start(USAGE))
    assert kinds([created, progress]) == ["created", "in_progress"]
    assert created["response"] == progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])


def test_a_stream_that_fails_says_so_twice_and_keeps_what_was_done() -> None:
    talker = reply()
    said = data_of(
        talker.start(USAGE) + talker.say(Piece((*CALLED, TextDelta("x"))), 0) + talker.error(ReplicaDied("s"))
    )
    error, failed = said[-2:]
    problem = {"code": "server_error", "message": "the replica failed, try again"}
    assert (error["type"], error["code"], error["message"]) == ("error", *problem.values())
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == problem
    assert [item["type"] for item in failed["response"]["output"]] == ["function_call"]


def test_errors_before_a_stream_have_the_codes_that_agents_look_for() -> None:
    too_long = RESPONSES.error(PromptTooLong(10, 5), "req_1")
    assert (too_long.status, too_long.body["error"]["code"]) == (400, "context_length_exceeded")
    full = RESPONSES.error(NoReplica("x"), "req_1")
    assert (full.status, full.headers["retry-after"]) == (503, "1")


def test_a_ping_is_a_comment() -> None:
    assert reply().ping() == b": ping\n\n"


def scored(text: str) -> list[ScoredToken]:
    return [ScoredToken(text[i : i + 2].encode(), -0.5, ((b"z", -1.0),)) for i in range(0, len(text), 2)]


@given(
    st.lists(st.tuples(st.sampled_from([TextDelta, ThinkingDelta]), st.text("abé", min_size=1, max_size=9)), max_size=4)
)
@settings(deadline=None)
def test_a_text_has_the_scores_of_its_own_tokens(parts: list[tuple[Any, str]]) -> None:
    """Streamed or whole, also where tokens that are not shown stand between."""
    hidden = ScoredToken(b"<mark>", 0.0, ())
    pieces: list[Piece] = []
    for kind, run in groupby(parts, lambda part: part[0]):
        text = "".join(text for _, text in run)
        pieces.append(Piece((), None, (hidden,)))
        pieces.append(Piece((kind(text),), None, tuple(scored(text))))
    events = [event for piece in pieces for event in piece.events]
    scores = tuple(score for piece in pieces for score in piece.scores)
    answer = Answer(blocks_of(events), Ending("end"), scores)
    said = reply(top_logprobs=1).whole([answer], USAGE)["output"]
    assert streamed([*pieces, Piece((), Ending("end"))], top_logprobs=1)[-1]["response"]["output"] == said
    for item in said:
        if item["type"] == "message":
            (part,) = item["content"]
            assert part["text"] in "".join(token["token"] for token in part["logprobs"])
            assert "<mark>" not in {part["logprobs"][0]["token"], part["logprobs"][-1]["token"]}


def test_a_token_is_shown_with_its_bytes_and_the_likeliest_others() -> None:
    answer = Answer(blocks_of([TextDelta("é")]), Ending("end"), (ScoredToken("é".encode(), -0.5, ((b"z", -1.0),)),))
    (token,) = reply(top_logprobs=1).whole([answer], USAGE)["output"][0]["content"][0]["logprobs"]
    assert token == {
        "token": "é",
        "bytes": [195, 169],
        "logprob": -0.5,
        "top_logprobs": [{"token": "z", "bytes": [122], "logprob": -1.0}],
    }
