"""Errors in each protocol's own shape, and sessions."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.api.chat_reply import CHAT
from cluster.api.errors import TABLE, fault_of
from cluster.api.hints import betas_of, session_of
from cluster.api.messages_reply import MESSAGES
from cluster.api.outcomes import outcome_of
from cluster.prompt.conversation import Conversation, Hints
from router import errors
from router.limits import MAX_HINT_CHARS, MAX_IGNORED_FIELDS


def asked(**fields: Any) -> Conversation:
    return Conversation(api="messages", model="m", **fields)


def every_error() -> list[Exception]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.KvistError)]
    own = {
        errors.PromptTooLong: errors.PromptTooLong(1, 2),
        errors.RateLimited: errors.RateLimited("w", retry_after_s=1),
    }
    return [own.get(kind) or kind("words") for kind in kinds]


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
    rejected = isinstance(error, errors.RateLimited)
    assert (outcome_of(error) == "client_error") == (blamed_on_client and not rejected)


def test_the_most_specific_row_counts() -> None:
    assert fault_of(errors.NoReplica()) is TABLE[errors.NoReplica]
    assert fault_of(errors.ReplicaDied()) is TABLE[errors.ReplicaError]


@pytest.mark.parametrize(
    ("headers", "session"),
    [({}, "body"), ({"x-session-id": "s"}, "s"), ({"x-session-id": "s", "x-claude-code-session-id": "c"}, "c")],
)
def test_session_headers_go_before_the_body(headers: dict[str, str], session: str) -> None:
    assert session_of(headers, asked(hints=Hints(session="body"))) == session


@pytest.mark.parametrize(
    ("headers", "betas"),
    [
        ({}, ()),
        ({"anthropic-beta": ""}, ()),
        ({"anthropic-beta": "a-2026, b-2026,,a-2026", "openai-beta": "c=v1"}, ("a-2026", "b-2026", "c=v1")),
        ({"anthropic-beta": ",".join(f"b{i}" for i in range(99))}, tuple(f"b{i}" for i in range(MAX_IGNORED_FIELDS))),
        ({"anthropic-beta": "x" * 9_999}, ("x" * MAX_HINT_CHARS,)),
    ],
)
def test_betas_that_clients_ask_for_are_named_within_bounds(headers: dict[str, str], betas: tuple[str, ...]) -> None:
    """At most MAX_IGNORED_FIELDS, each of MAX_HINT_CHARS."""
    assert betas_of(headers) == betas
