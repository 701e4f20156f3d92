"""Answers of Chat Completions: streamed and whole they say the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.chat_reply import CHAT, ChatReply
from cluster.api.dialect import Answer, AnswerId
from cluster.output.assembly import Ending, Piece, ScoredToken, Usage
from cluster.output.events import CallArguments, CallBroken, CallEnd, CallStart, TextDelta, ThinkingDelta, merged
from cluster.prompt.conversation import Conversation, Limits, Text, ToolCall
from router.errors import ReplicaDied
from tests.cluster.api.streams import Told, data_of, told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.output.events import Event

USAGE = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=3, reasoning_tokens=2)
ID = AnswerId("1", 1700000000)
WEATHER = (CallStart("c1", "weather"), CallArguments('{"city":'), CallArguments(' "Lund"}'), CallEnd())


def reply(*, choices: int = 1, logprobs: int | None = None, stream_usage: bool = True) -> ChatReply:
    limits = Limits(choices=choices, logprobs=logprobs)
    return ChatReply(Conversation(api="chat", model="m", limits=limits, stream_usage=stream_usage), ID)


def streamed(choices: Sequence[Sequence[Piece]], talker: ChatReply) -> list[dict[str, Any]]:
    """All chunks, the choices one piece after another in turn."""
    said = talker.start(USAGE)
    for step in range(max(map(len, choices))):
        for choice, pieces in enumerate(choices):
            said += b"".join(talker.say(piece, choice) for piece in pieces[step : step + 1])
    return data_of(said + talker.finish(USAGE))


def deltas(*events: Event) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in data_of(reply().say(Piece(merged(events)), 0))]


def folded(chunks: Sequence[dict[str, Any]], void: frozenset[int]) -> dict[str, Any]:
    """What a client makes of one choice's chunks, calls that never became JSON left out."""
    message: dict[str, Any] = {"role": None, "content": "", "refusal": None, "reasoning_content": ""}
    calls: dict[int, Any] = {}
    scores: list[Any] = []
    for chunk in chunks:
        delta = chunk["delta"]
        message["role"] = delta.get("role", message["role"])
        for field in ("content", "reasoning_content"):
            message[field] += delta.get(field, "")
        for part in delta.get("tool_calls", ()):
            call = calls.setdefault(part.pop("index"), part)
            if call is not part:
                call["function"]["arguments"] += part["function"]["arguments"]
        scores += (chunk["logprobs"] or {"content": []})["content"]
    message["tool_calls"] = [call for index, call in calls.items() if index not in void]
    assert list(calls) == list(range(len(calls)))
    return {"message": message, "scores": scores, "finish_reason": chunks[-1]["finish_reason"]}


@given(choices=st.lists(told(), min_size=1, max_size=3), wanted=st.booleans())
@settings(deadline=None, max_examples=200)
def test_a_stream_says_what_the_whole_answer_says(choices: list[Told], wanted: bool) -> None:
    """Each choice, whatever its blocks and however they were cut."""
    logprobs = 3 if wanted else None
    chunks = streamed([one.pieces for one in choices], reply(choices=len(choices), logprobs=logprobs))
    whole = reply(choices=len(choices), logprobs=logprobs).whole([one.answer for one in choices], USAGE)
    *parts, last = chunks
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    for choice, one, said in zip(whole["choices"], choices, range(len(choices)), strict=True):
        mine = [part["choices"][0] for part in parts if part["choices"][0]["index"] == said]
        assert [part["finish_reason"] for part in mine[:-1]] == [None] * (len(mine) - 1)
        found = folded(mine, one.void)
        message = {"reasoning_content": "", "tool_calls": [], **choice["message"]}
        message["content"] = message["content"] or ""
        assert found["message"] == message
        assert found["finish_reason"] == choice["finish_reason"]
        assert found["scores"] == json.loads(json.dumps((choice["logprobs"] or {"content": []})["content"]))
        assert (choice["logprobs"] is not None) == wanted


def test_a_call_is_named_first_and_its_arguments_follow_in_order() -> None:
    assert deltas(*WEATHER[:2]) + deltas(ThinkingDelta("Hm")) == [
        {
            "tool_calls": [
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {"reasoning_content": "Hm"},
    ]


def test_the_index_of_a_broken_call_is_not_used_again() -> None:
    """What of it was said is no JSON, so that nobody runs it; its words come as text."""
    broken = (CallStart("c0", "weather"), CallArguments('{"city'), CallBroken(), TextDelta('weather {"city'))
    said = deltas(*broken, *WEATHER)
    assert [call["index"] for delta in said for call in delta.get("tool_calls", ())] == [0, 0, 1, 1]
    assert said[2] == {"content": 'weather {"city'}


def test_a_whole_answer_holds_calls_and_no_empty_text() -> None:
    answer = Answer((ToolCall("c1", "weather", "{}"),), Ending("tool_use"))
    (choice,) = reply().whole([answer], USAGE)["choices"]
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    assert choice["finish_reason"] == "tool_calls"
    (silent,) = reply().whole([Answer((), Ending("end"))], USAGE)["choices"]
    assert silent["message"] == {"role": "assistant", "content": "", "refusal": None}


def test_a_token_says_its_text_its_bytes_and_its_alternatives() -> None:
    scores = (ScoredToken(b"a", -0.5, ((b"a", -0.5), (b"\xc3", float("-inf")))),)
    (choice,) = reply(logprobs=2).whole([Answer((Text("a"),), Ending("end"), scores)], USAGE)["choices"]
    (token,) = choice["logprobs"]["content"]
    assert (token["token"], token["bytes"], token["logprob"]) == ("a", [97], -0.5)
    assert token["top_logprobs"][1] == {"token": "bytes:\\xc3", "bytes": [195], "logprob": -9999.0}


def test_scores_of_a_token_without_text_come_with_the_next_chunk() -> None:
    talker = reply(logprobs=0)
    score = ScoredToken(b"\xc3", -1.0, ())
    assert talker.say(Piece((), None, (score,)), 0) == b""
    (chunk,) = data_of(talker.say(Piece((TextDelta("é"),), None, (ScoredToken(b"\xa9", -2.0, ()),)), 0))
    assert [token["logprob"] for token in chunk["choices"][0]["logprobs"]["content"]] == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("ending", "reason"),
    [("end", "stop"), ("stop_sequence", "stop"), ("length", "length"), ("context_window", "length"),
     ("tool_use", "tool_calls")],
)  # fmt: skip
def test_every_ending_has_its_reason(ending: Any, reason: str) -> None:
    (chunk,) = data_of(reply().say(Piece((), Ending(ending)), 0))
    assert (chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]) == ({}, reason)


def test_usage_tells_cached_and_reasoning_tokens() -> None:
    assert reply().whole([], USAGE)["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


def test_usage_is_streamed_only_when_asked_for() -> None:
    silent = reply(stream_usage=False)
    assert silent.finish(USAGE) == b"data: [DONE]\n\n"
    assert all("usage" not in chunk for chunk in data_of(silent.start(USAGE)))
    assert [chunk["usage"] for chunk in data_of(reply().start(USAGE))] == [None]


def test_a_failed_stream_ends_with_its_error_and_is_not_done() -> None:
    said = reply().error(ReplicaDied("secret"))
    (error,) = data_of(said)
    assert error["error"]["message"] == "the replica failed, try again"
    assert b"DONE" not in said


def test_the_dialect_answers_in_this_form() -> None:
    conversation = CHAT.parse(b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}')
    whole = CHAT.reply(conversation, ID).whole([Answer((Text("Yes"),), Ending("end"))], USAGE)
    assert (whole["id"], whole["object"], whole["created"], whole["model"]) == (
        "chatcmpl-1", "chat.completion", 1700000000, "m",
    )  # fmt: skip
