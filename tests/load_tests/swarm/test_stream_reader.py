"""A stream of events, cut anywhere: what it said, when, and how it ended."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.bench.ingress_bodies import text_block
from load_tests.swarm import stream_reader
from load_tests.swarm.stream_reader import StreamReader
from tests.load_tests.swarm.entries import CALM


def event(data: dict[str, Any]) -> bytes:
    return f"event: {data.get('type')}\ndata: {json.dumps(data)}\n\n".encode()


def text_delta(text: str) -> bytes:
    return event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})


USAGE = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 0}
START = event({"type": "message_start", "message": {"usage": USAGE}})
BLOCK = event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
END = event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 2}}) + event({"type": "message_stop"})
MESSAGES = START + BLOCK + text_delta("Hé") + event({"type": "ping"}) + text_delta("llo") + END
CHAT_USAGE = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 90}}
CHAT = (
    event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    + event({"choices": [{"delta": {"content": "Hé"}}]})
    + event({"choices": [{"delta": {"content": "llo"}, "finish_reason": None}]})
    + event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    + event({"choices": [], "usage": CHAT_USAGE})
    + b"data: [DONE]\n\n"
)


def fed(api: Any, *parts: bytes) -> StreamReader:
    """One part at each second from 1 on."""
    reader = StreamReader(api)
    for at, part in enumerate(parts, start=1):
        reader.feed(part, float(at))
    reader.finish()
    return reader


@CALM
@given(cuts=st.lists(st.integers(0, 600), max_size=6), api=st.sampled_from(["messages", "chat"]))
def test_where_a_stream_is_cut_into_pieces_changes_nothing_it_says(cuts: list[int], api: str) -> None:
    data = MESSAGES if api == "messages" else CHAT
    edges = [0, *sorted(cuts), len(data)]
    reader = fed(api, *(data[a:b] for a, b in itertools.pairwise(edges)))
    assert reader.error is None
    assert reader.is_complete
    assert reader.pieces == 2
    assert reader.answer.blocks() == [text_block("Héllo")]
    assert reader.usage == {"prompt_tokens": 100, "cached_tokens": 90, "output_tokens": 2}


def test_times_are_of_what_was_generated_only() -> None:
    reader = fed("messages", START, event({"type": "ping"}), BLOCK + text_delta("a"), b"", b"", text_delta("b"), END)
    assert (reader.first_s, reader.last_s, reader.longest_gap_s) == (3.0, 6.0, 3.0)


def test_thinking_and_calls_are_tokens_too() -> None:
    thinking = {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "x"}}
    call = {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{"}}
    assert fed("messages", event(thinking), event(call)).pieces == 2


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([START, text_delta("a")], "truncated"),
        ([START, event({"type": "error", "error": {"type": "overloaded_error"}})], "stream_error"),
        ([b"data: {broken\n\n"], "bad_stream"),
        ([b"data: [1]\n\n"], "bad_stream"),
    ],
)
def test_a_stream_that_does_not_end_well_has_a_class_of_error(parts: list[bytes], error: str) -> None:
    assert fed("messages", *parts).error == error


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would otherwise fill the memory of the client."""
    monkeypatch.setattr(stream_reader, "MAX_LINE_BYTES", 1000)
    assert fed("chat", b"data: " + b"x" * 500, b"x" * 600).error == "bad_stream"
