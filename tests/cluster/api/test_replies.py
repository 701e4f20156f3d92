"""Answers and errors in each protocol's own shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.chat_reply import CHAT, ChatReply
from cluster.api.dialect import AnswerId
from cluster.api.errors import TABLE, fault_of
from cluster.api.hints import session_of
from cluster.api.messages_reply import MESSAGES, MessagesReply
from cluster.api.outcomes import outcome_of
from cluster.output.assembly import Ending, Usage
from cluster.prompt.conversation import Conversation, Hints
from router import errors

USAGE = Usage(10, 4, 3)
ENDINGS = [Ending("end"), Ending("length"), Ending("stop_sequence", "x")]


def asked(**fields: Any) -> Conversation:
    return Conversation(api="messages", model="m", **fields)


def events(stream: bytes) -> list[dict[str, Any]]:
    datas = [line for line in stream.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in datas]


@given(texts=st.lists(st.text(min_size=1, max_size=8), max_size=5), ending=st.sampled_from(ENDINGS))
@settings(deadline=None)
def test_a_messages_stream_says_what_the_whole_answer_says(texts: list[str], ending: Ending) -> None:
    streamed, whole = (MessagesReply(asked(), AnswerId("1", 0)) for _ in range(2))
    said = streamed.start(USAGE) + b"".join(map(streamed.text, texts)) + streamed.finish(ending, USAGE)
    start, *middle, delta, stop = events(said)
    message = {
        **start["message"],
        **delta["delta"],
        "usage": delta["usage"],
        "content": [{"type": "text", "text": "".join(texts)}] if texts else [],
    }
    assert message == whole.whole("".join(texts), ending, USAGE)
    assert stop == {"type": "message_stop"}
    kinds = [event["type"] for event in middle]
    block = ["content_block_start", *["content_block_delta"] * len(texts), "content_block_stop"]
    assert kinds == (block if texts else [])


@given(texts=st.lists(st.text(min_size=1, max_size=8), max_size=5), ending=st.sampled_from(ENDINGS))
@settings(deadline=None)
def test_a_chat_stream_says_what_the_whole_answer_says(texts: list[str], ending: Ending) -> None:
    streamed, whole = (ChatReply(asked(stream_usage=True), AnswerId("1", 0)) for _ in range(2))
    said = streamed.start(USAGE) + b"".join(map(streamed.text, texts)) + streamed.finish(ending, USAGE)
    *chunks, last = events(said)
    answer: Any = whole.whole("".join(texts), ending, USAGE)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "".join(texts)
    assert answer["choices"][0]["message"]["content"] == "".join(texts)
    assert chunks[-1]["choices"][0]["finish_reason"] == answer["choices"][0]["finish_reason"]
    assert last["usage"] == answer["usage"]


def test_input_and_cached_tokens_add_up_to_the_prompt() -> None:
    usage = MessagesReply(asked(), AnswerId("1", 0)).whole("x", Ending("end"), USAGE)["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"] == 10


def every_error() -> list[Exception]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.KvistError)]
    return [kind(1, 2) if kind is errors.PromptTooLong else kind("words") for kind in kinds]


@pytest.mark.parametrize("error", [*every_error(), ValueError("words")])
def test_every_error_has_a_shape_in_both_protocols(error: Exception) -> None:
    in_messages, in_chat = (dialect.error(error, "req_1") for dialect in (MESSAGES, CHAT))
    assert in_messages.body["type"] == "error"
    assert in_messages.body["request_id"] == "req_1"
    assert set(in_chat.body["error"]) == {"message", "type", "param", "code"}
    blamed_on_client = isinstance(error, errors.ClientError)
    for answer in (in_messages, in_chat):
        assert (400 <= answer.status < 500) == blamed_on_client
        assert (answer.body["error"]["message"] == str(error)) == blamed_on_client
    assert (outcome_of(error) == "client_error") == blamed_on_client


def test_a_stream_that_fails_before_any_text_opens_no_block() -> None:
    failed = events(MessagesReply(asked(), AnswerId("1", 0)).error(errors.ReplicaDied("x")))
    assert [event["type"] for event in failed] == ["error"]


def test_the_most_specific_row_counts() -> None:
    assert fault_of(errors.NoReplica()) is TABLE[errors.NoReplica]
    assert fault_of(errors.ReplicaDied()) is TABLE[errors.ReplicaError]


@pytest.mark.parametrize(
    ("headers", "session"),
    [({}, "body"), ({"x-session-id": "s"}, "s"), ({"x-session-id": "s", "x-claude-code-session-id": "c"}, "c")],
)
def test_session_headers_go_before_the_body(headers: dict[str, str], session: str) -> None:
    assert session_of(headers, asked(hints=Hints(session="body"))) == session
