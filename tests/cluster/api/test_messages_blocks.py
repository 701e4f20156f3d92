"""Content blocks of Messages: what each becomes, what is left out of a history, what is refused and in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.api.call_ids import shown
from cluster.api.messages import parse_message
from cluster.prompt.conversation import (
    Conversation,
    Media,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolReference,
    ToolRemoval,
    ToolResult,
)
from router.errors import InvalidRequest
from router.limits import MAX_TOOLS

USER: Any = {"role": "user", "content": "Hi"}
SCHEMA: Any = {"type": "object"}
READ: Any = {"name": "read", "description": "Reads.", "input_schema": SCHEMA}
PNG: Any = {"type": "base64", "media_type": "image/png", "data": "aGk="}
PDF: Any = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}


def parsed(*messages: Any, **fields: Any) -> Conversation:
    return parse_message(json.dumps({"model": "m", "max_tokens": 9, "messages": messages, **fields}).encode())


def blocks(content: Any, role: str = "user") -> Any:
    return parsed({"role": role, "content": content}).messages[0].blocks


def text(words: str, **more: Any) -> Any:
    return {"type": "text", "text": words, **more}


def document(source: Any, **more: Any) -> Any:
    return {"type": "document", "source": source, **more}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (text("a", citations=[{"type": "page_location"}], cache_control={"type": "ephemeral"}), [Text("a")]),
        (text(""), [Text("")]),
        ({"type": "image", "source": PNG}, [Media("image", "image/png")]),
        ({"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}, [Media("image")]),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, [Media("image")]),
        (document({"type": "text", "media_type": "text/plain", "data": "D"}), [Text("D")]),
        (
            document({"type": "text", "data": "D"}, title="T", context="C", citations={"enabled": True}),
            [Text("T"), Text("C"), Text("D")],
        ),
        (document({"type": "content", "content": "D"}, title=None), [Text("D")]),
        (
            document({"type": "content", "content": [text("D"), {"type": "image", "source": PNG}]}, title="T"),
            [Text("T"), Text("D"), Media("image", "image/png")],
        ),
        (document(PDF, title="T"), [Text("T"), Media("document", "application/pdf")]),
        (document({"type": "url", "url": "http://127.0.0.1/x.pdf"}), [Media("document")]),
        (document({"type": "file", "file_id": "f"}), [Media("document")]),
        (
            {"type": "search_result", "title": "T", "source": "S", "content": [text("a"), text("b")]},
            [Text("T"), Text("S"), Text("a"), Text("b")],
        ),
        ({"type": "tool_reference", "tool_name": "read"}, [ToolReference("read")]),
        ({"type": "compaction", "content": "Earlier: x"}, [Text("Earlier: x")]),
        ({"type": "compaction", "content": None}, []),
        ({"type": "redacted_thinking", "data": "x"}, []),
        ({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}, []),
    ],
)
def test_what_a_user_shows_becomes_text_where_it_holds_text(block: Any, said: Any) -> None:
    assert blocks([block, text("after")]) == (*said, Text("after"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, ()),
        ([], ()),
        ("", (Text(""),)),
        ("ok", (Text("ok"),)),
        (
            [text("a"), {"type": "image", "source": PNG}, document({"type": "text", "data": "D"}, title="T")],
            (Text("a"), Media("image", "image/png"), Text("T"), Text("D")),
        ),
        ([{"type": "tool_reference", "tool_name": "read"}], (ToolReference("read"),)),
        ([{"type": "search_result", "title": "T", "source": "S", "content": []}], (Text("T"), Text("S"))),
        (
            [
                {
                    "type": "browser_state",
                    "tabs": [{"tab_id": "1", "title": "T", "url": "u", "active": True}, {"tab_id": "2"}],
                    "state_changes": [{"type": "tab_opened", "tab_id": "2"}],
                }
            ],
            (Text('Browser tabs:\n[1] T u (active)\n[2]  \n{"type": "tab_opened", "tab_id": "2"}'),),
        ),
        ([{"type": "novel", "x": 1}, text("a")], (Text("a"),)),
    ],
)
def test_what_a_tool_answered_is_its_result(content: Any, said: Any) -> None:
    block = {"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": None, "cache_control": {}}
    assert blocks([block]) == (ToolResult("t", said),)


def test_a_failed_call_is_told_from_one_that_succeeded() -> None:
    block = {"type": "tool_result", "tool_use_id": "t", "is_error": True}
    assert blocks([block]) == (ToolResult("t", (), is_error=True),)


def test_blocks_of_a_turn_keep_their_order() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "r"}
    assert blocks([text("a"), result, text("b")]) == (Text("a"), ToolResult("t", (Text("r"),)), Text("b"))


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"type": "thinking", "thinking": "hm", "signature": "s"}, [Thinking("hm")]),
        ({"type": "thinking", "thinking": "hm", "signature": ""}, [Thinking("hm")]),
        ({"type": "thinking", "thinking": "hm"}, [Thinking("hm")]),
        ({"type": "thinking", "thinking": "", "signature": "s"}, []),
        ({"type": "tool_use", "id": "t", "name": "read"}, [ToolCall("t", "read", "{}")]),
        ({"type": "tool_use", "id": "t", "name": "read", "input": {}}, [ToolCall("t", "read", "{}")]),
        (
            {"type": "tool_use", "id": "t", "name": "read", "input": {"b": "é", "a": [1.0]}, "caller": {}},
            [ToolCall("t", "read", '{"b": "é", "a": [1.0]}')],
        ),
    ],
)
def test_what_an_assistant_said_comes_back(block: Any, said: Any) -> None:
    assert blocks([block, text("after")], "assistant") == (*said, Text("after"))


def test_arguments_are_the_clients_own_text() -> None:
    """In its order and with its numbers, which decoding could change."""
    sent = b'{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t",' \
        b'"name":"n","input":{"z":1.10, "a":12345678901234567890123,"\\u00fc":"\\u00e9"}}]}]}'  # fmt: skip
    (call,) = parse_message(sent).messages[0].blocks
    assert call == ToolCall("t", "n", '{"z":1.10, "a":12345678901234567890123,"ü":"é"}')


def test_the_models_own_ids_come_back_to_it() -> None:
    own = "functions.read:0"
    call = {"type": "tool_use", "id": shown(own), "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": shown(own), "content": "r"}
    read = parsed({"role": "assistant", "content": [call]}, {"role": "user", "content": [result]})
    assert read.messages[0].blocks == (ToolCall(own, "read", "{}"),)
    assert read.messages[1].blocks == (ToolResult(own, (Text("r"),)),)


ELSEWHERE: Any = [
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result", "url": "u"}]},
    {"type": "mcp_tool_use", "id": "s", "name": "x", "server_name": "y", "input": {}},
    {"type": "container_upload", "file_id": "f"},
    {"type": "novel", "text": 5, "content": {"a": []}, "id": []},
]


@pytest.mark.parametrize("block", ELSEWHERE)
def test_what_was_done_elsewhere_is_left_out_of_the_history_and_named(block: Any) -> None:
    kind = block["type"]
    for message in (
        {"role": "assistant", "content": [text("a"), block]},
        {"role": "user", "content": [text("a"), block]},
    ):
        read = parsed(message, USER)
        assert read.messages[0].blocks == (Text("a"),)
        assert read.hints.ignored == (f"content of type {kind}",)


@pytest.mark.parametrize("block", ELSEWHERE)
def test_in_the_newest_user_message_it_is_refused_by_name(block: Any) -> None:
    later: Any = [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}]
    with pytest.raises(InvalidRequest, match=rf"messages\[1\].content\[1\]: content of type `{block['type']}` is not"):
        parsed(USER, {"role": "user", "content": [text("a"), block]}, *later)


def test_system_messages_stand_where_the_client_put_them() -> None:
    read = parsed(
        {"role": "system", "content": "first"},
        USER,
        {"role": "assistant", "content": "yes"},
        {"role": "system", "content": [text("later", cache_control={"type": "ephemeral"})]},
    )
    assert [message.role for message in read.messages] == ["system", "user", "assistant", "system"]
    assert read.messages[3].blocks == (Text("later"),)


def change(kind: str, **tool: Any) -> Any:
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


def test_tools_come_and_go_within_the_conversation() -> None:
    read = parsed(
        USER,
        change("tool_addition", type="tool_reference", name="read"),
        change("tool_addition", type="tool_definition", definition={**READ, "name": "write"}),
        change("tool_removal", type="tool_reference", name="read"),
        tools=[{**READ, "defer_loading": True}],
    )
    said = [message.blocks for message in read.messages[1:]]
    assert said == [(ToolReference("read"),), (ToolReference("write"),), (ToolRemoval("read"),)]
    assert read.tools == (
        Tool(name="read", description="Reads.", parameters=json.dumps(SCHEMA), deferred=True),
        Tool(name="write", description="Reads.", parameters=json.dumps(SCHEMA), deferred=True),
    )


def test_a_tool_defined_anew_changes_unless_it_stands_at_the_head() -> None:
    anew = change("tool_addition", type="tool_definition", definition={**READ, "description": "Reads more."})
    (listed,) = parsed(USER, anew, tools=[READ]).tools
    assert (listed.description, listed.deferred) == ("Reads.", False)
    (deferred,) = parsed(USER, anew, tools=[{**READ, "defer_loading": True}]).tools
    assert (deferred.description, deferred.deferred) == ("Reads more.", True)


def test_a_tool_defined_within_can_be_chosen() -> None:
    added = change("tool_addition", type="tool_definition", definition=READ)
    assert parsed(USER, added, tool_choice={"type": "tool", "name": "read"}).tool_choice.name == "read"


@pytest.mark.parametrize(
    ("message", "ignored"),
    [
        (change("tool_addition", type="mcp_toolset_reference", server_name="s"), "mcp_toolset_reference"),
        (change("tool_removal", type="mcp_tool_reference", name="n", server_name="s"), "mcp_tool_reference"),
        (
            change("tool_addition", type="tool_definition", definition={"type": "web_search_1", "name": "w"}),
            "web_search_1",
        ),
    ],
)
def test_changes_of_tools_that_run_elsewhere_are_left_out_and_named(message: Any, ignored: str) -> None:
    read = parsed(USER, message)
    kind = message["content"][0]["type"]
    assert read.messages[1].blocks == ()
    assert read.hints.ignored == (f"{kind} of type {ignored}",)


def test_max_tools_stops_floods_of_tools_defined_within() -> None:
    """MAX_TOOLS of all tools together."""
    added = [change("tool_addition", type="tool_definition", definition={**READ, "name": f"t{i}"}) for i in range(9)]
    listed = [{**READ, "name": f"l{i}"} for i in range(MAX_TOOLS - 8)]
    parsed(USER, *added[1:], tools=listed)
    with pytest.raises(InvalidRequest, match=f"messages: tools defined in them: more than {MAX_TOOLS} tools"):
        parsed(USER, *added, tools=listed)


@pytest.mark.parametrize(
    ("role", "block", "words"),
    [
        ("user", {"type": "tool_use", "id": "t", "name": "n"}, ": content of type `tool_use` cannot stand in a user"),
        ("user", {"type": "thinking", "thinking": "x"}, ": content of type `thinking` cannot stand in a user message"),
        ("user", {"type": "tool_removal"}, ": content of type `tool_removal` cannot stand in a user message"),
        ("assistant", {"type": "tool_result"}, ": content of type `tool_result` cannot stand in an assistant message"),
        ("assistant", {"type": "image", "source": PNG}, ": content of type `image` cannot stand in an assistant"),
        ("system", {"type": "tool_use"}, ": content of type `tool_use` cannot stand in a system message"),
        ("user", {}, ": Object missing required field `type`"),
        ("user", {"type": 5}, ".type: Expected `str`, got `int`"),
        ("user", {"type": "text"}, ".text: field required"),
        ("user", {"type": "text", "text": 5}, ".text: Expected `str | null`, got `int`"),
        ("user", {"type": "image"}, ".source: field required"),
        ("user", {"type": "image", "source": {}}, ".source: Object missing required field `type`"),
        ("user", {"type": "image", "source": "x"}, ".source: Expected `object | null`, got `str`"),
        ("user", document({"type": "text"}), ".source.data: field required"),
        ("user", document({"type": "text", "data": "D"}, title=5), ".title: Expected `str | null`, got `int`"),
        ("user", document({"type": "content", "content": 5}), ".source.content: Expected `str | array | null`"),
        (
            "user",
            document({"type": "content", "content": [{"type": "tool_use"}]}),
            ".source.content[0]: content of type `tool_use` is not supported here",
        ),
        ("user", {"type": "search_result"}, ".content: field required"),
        ("user", {"type": "tool_reference"}, ".tool_name: field required"),
        ("user", {"type": "tool_result", "content": "x"}, ".tool_use_id: field required"),
        (
            "user",
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_result"}]},
            ".content[0]: content of type `tool_result` cannot stand in a tool result",
        ),
        (
            "user",
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "browser_state"}]},
            ".content[0].tabs: field required",
        ),
        ("user", {"type": "tool_result", "tool_use_id": "t", "is_error": "no"}, ".is_error: Expected `bool | null`"),
        ("assistant", {"type": "thinking"}, ".thinking: field required"),
        ("assistant", {"type": "tool_use", "name": "n"}, ".id: field required"),
        ("assistant", {"type": "tool_use", "id": "t"}, ".name: field required"),
        ("assistant", {"type": "tool_use", "id": "t", "name": "n", "input": "x"}, ".input: Expected `object`"),
        ("assistant", {"type": "tool_use", "id": "t", "name": "n", "input": [1]}, ".input: Expected `object`"),
        ("system", {"type": "tool_addition"}, ".tool: field required"),
        ("system", {"type": "tool_addition", "tool": {"type": "tool_reference"}}, ".tool.name: a tool needs a name"),
        ("system", {"type": "tool_removal", "tool": {"type": "tool_reference"}}, ".tool.name: a tool needs a name"),
        (
            "system",
            {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "n"}}},
            ".tool.definition.input_schema: field required",
        ),
    ],
)
def test_a_bad_block_is_refused_where_it_stands(role: str, block: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(USER, {"role": role, "content": [text("a"), block]})
    assert str(caught.value).startswith("messages[1].content[1]" + words)


def test_system_text_is_text() -> None:
    read = parsed(USER, system=[text("a"), {"type": "novel"}, text("b")])
    assert (read.system, read.hints.ignored) == ((Text("a"), Text("b")), ("content of type novel",))
    with pytest.raises(InvalidRequest, match=r"system\[0\]: content of type `image` cannot stand in system text"):
        parsed(USER, system=[{"type": "image", "source": PNG}])


@pytest.mark.parametrize("field", ["input", "content", "source", "novel"])
def test_endless_nesting_within_a_block_is_stopped(field: str) -> None:
    deep = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
    kind = {"input": "tool_use", "content": "tool_result", "source": "image", "novel": "text"}[field].encode()
    role = b"assistant" if field == "input" else b"user"
    block = (
        b'{"type":"' + kind + b'","id":"t","tool_use_id":"t","name":"n","text":"x","' + field.encode() + b'":' + deep
    )
    with pytest.raises(InvalidRequest, match="nested"):
        parse_message(b'{"model":"m","max_tokens":1,"messages":[{"role":"' + role + b'","content":[' + block + b"}]}]}")
