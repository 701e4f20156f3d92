"""Request bodies: what is read, what is ignored, what is refused and in which words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api import body as fields_of
from cluster.api.chat import parse_chat
from cluster.api.completions import parse_completion
from cluster.api.messages import parse_message
from cluster.api.responses import parse_responses
from cluster.prompt.conversation import Text
from router.errors import ClientError, InvalidRequest, RequestTooLarge
from router.limits import (
    INLINE_BODY_BYTES,
    MAX_BLOCKS_PER_MESSAGE,
    MAX_BODY_BYTES,
    MAX_BODY_COMMAS,
    MAX_BODY_MARKS,
    MAX_IGNORED_FIELDS,
    MAX_JSON_DEPTH,
    MAX_MESSAGES,
    MAX_NUMBER_CHARS,
    MAX_PROMPT_TOKENS,
    MAX_STOP_SEQUENCE_CHARS,
    MAX_STOP_SEQUENCES,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.prompt.conversation import Conversation

    Parser = Callable[[bytes], Conversation]

USER: Any = {"role": "user", "content": "Hi"}
PARSERS = pytest.mark.parametrize("parse", [parse_message, parse_chat])


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 9, "messages": [USER], **fields}).encode()


def test_a_string_and_one_text_block_are_the_same() -> None:
    as_block = {"role": "user", "content": [{"type": "text", "text": "Hi", "citations": None}]}
    for parse in (parse_message, parse_chat):
        assert parse(body()) == parse(body(messages=[as_block]))


@PARSERS
def test_no_probability_mass_means_the_likeliest_token(parse: Parser) -> None:
    greedy = parse(body(top_p=0, temperature=1)).limits
    assert (greedy.temperature, greedy.top_p) == (0, 1)
    default = parse(body(top_p=None)).limits
    assert (default.temperature, default.top_p) == (1, 1)
    tiny = parse(body(top_p=0.01, temperature=0.5)).limits
    assert (tiny.temperature, tiny.top_p) == (0.5, 0.01)


@PARSERS
def test_unknown_fields_are_ignored_and_named(parse: Parser) -> None:
    assert parse(body(novel={"a": [1]}, another=1)).hints.ignored == ("another", "novel")
    assert parse(body(**{f"novel_{i}": 1 for i in range(100)})).hints.ignored[-1].startswith("novel_")
    assert len(parse(body(**{f"novel_{i}": 1 for i in range(100)})).hints.ignored) == MAX_IGNORED_FIELDS


REFUSED_ALIKE = [
    ({"messages": None}, "messages: Expected `array`, got `null`"),
    ({"messages": []}, "messages: at least one message is required"),
    ({"messages": [{"content": "x"}]}, "messages[0]: Object missing required field `role`"),
    ({"messages": [{"role": "user"}]}, "messages[0].content: field required"),
    ({"messages": [{"role": "ghost", "content": "x"}]}, "messages[0].role: `ghost` is not a role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text: field required",
    ),
    ({"model": 5}, "model: Expected `str`, got `int`"),
    ({"temperature": 3}, "temperature: must be between 0 and 2"),
    ({"top_p": -1}, "top_p: must be between 0 and 1"),
    ({"top_k": -2}, "top_k: must be between"),
    ({"max_tokens": -1}, "max_tokens: must be at least"),
    ({"tools": {}}, "tools: Expected `array | null`, got `object`"),
    ({"stream": "yes"}, "stream: Expected `bool | null`, got `str`"),
    ({"vllm_xargs": {}}, "vllm_xargs: this field belongs to an engine"),
    ({"chat_template": "{{ x }}"}, "chat_template: this field belongs to an engine"),
    ({"chat_template_kwargs": {}}, "chat_template_kwargs: this field belongs to an engine"),
    ({"cache_salt": "s"}, "cache_salt: this field belongs to an engine"),
]


@PARSERS
@pytest.mark.parametrize(("fields", "words"), REFUSED_ALIKE)
def test_what_cannot_be_served_is_refused_by_name(parse: Parser, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(body(**fields))
    assert str(caught.value).startswith(words)


@PARSERS
def test_a_body_of_too_many_bytes_is_too_large(parse: Parser) -> None:
    with pytest.raises(RequestTooLarge):
        parse(b" " * (MAX_BODY_BYTES + 1))


@PARSERS
def test_endless_nesting_is_stopped(parse: Parser) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    for place in (b'{"novel":' + deep + b"}", deep, b'{"messages":[{"role":"user","content":' + deep + b"}]}"):
        with pytest.raises(InvalidRequest):
            parse(place)


@PARSERS
def test_nesting_is_bounded_by_a_named_limit(parse: Parser) -> None:
    def nested(levels: int) -> Any:
        value: Any = {}
        for i in range(levels - 1):
            value = [value] if i % 2 else {"a": value}
        return value

    parse(body(metadata=nested(MAX_JSON_DEPTH - 1)))
    parse(body(metadata=[{}] * 1_000))
    with pytest.raises(InvalidRequest, match="metadata: nested deeper than 64 levels"):
        parse(body(metadata=nested(MAX_JSON_DEPTH + 1)))


@PARSERS
def test_unknown_fields_are_not_looked_into(parse: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    check = fields_of.check_depth

    def noting(raw: msgspec.Raw, path: str) -> None:
        seen.append(path)
        check(raw, path)

    monkeypatch.setattr(fields_of, "check_depth", noting)
    parse(body(novel=[[1]] * 1_000, metadata=[[1]] * 1_000))
    assert set(seen) == {"model", "max_tokens", "metadata"}


@PARSERS
def test_a_flood_of_unknown_fields_is_not_named(parse: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[Any] = []
    decode = fields_of.decode

    def noting(raw: Any, kind: Any, path: str) -> Any:
        kinds.append(kind)
        return decode(raw, kind, path)

    monkeypatch.setattr(fields_of, "decode", noting)
    few = parse(body(novel=1, metadata={"a": "x" * INLINE_BODY_BYTES}))
    assert fields_of.Fields in kinds
    assert few.hints.ignored == ("novel",)
    kinds.clear()
    flood = parse(body(**{f"novel_{i:06}": i for i in range(INLINE_BODY_BYTES // 10)}))
    assert fields_of.Fields not in kinds
    assert flood.hints.ignored == (f"more than {INLINE_BODY_BYTES} bytes of unknown fields",)
    assert flood.messages == few.messages


@PARSERS
def test_a_large_body_is_refused_in_the_same_words(parse: Parser) -> None:
    padding = "x" * INLINE_BODY_BYTES
    with pytest.raises(InvalidRequest, match="cache_salt: this field belongs to an engine"):
        parse(body(cache_salt="s", novel=padding))
    with pytest.raises(InvalidRequest, match="messages: field required"):
        parse(json.dumps({"model": "m", "max_tokens": 1, "novel": padding}).encode())
    with pytest.raises(InvalidRequest, match="body: Expected `object`, got `array`"):
        parse(json.dumps([padding]).encode())


plain_values = st.recursive(
    st.none() | st.integers() | st.text('[]{}"\\a', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\a', max_size=4), inner, max_size=3),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(value=plain_values, outer=st.integers(MAX_JSON_DEPTH - 4, MAX_JSON_DEPTH))
@settings(deadline=None, max_examples=400)
def test_brackets_within_strings_are_no_nesting(value: Any, outer: int) -> None:
    for i in range(outer):
        value = [value, "]"] if i % 2 else {'["': value}
    raw = msgspec.Raw(json.dumps(value).encode())
    if depth_of(value) <= MAX_JSON_DEPTH:
        fields_of.check_depth(raw, "x")
    else:
        with pytest.raises(InvalidRequest, match="nested deeper"):
            fields_of.check_depth(raw, "x")


def test_a_large_value_of_an_unserved_field_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields_of, "decode", None)
    with pytest.raises(InvalidRequest, match="tools: not supported yet"):
        fields_of.refuse({"tools": msgspec.Raw(b"[" + b"1," * 1_000 + b"1]")}, {"tools": ([],)})


@PARSERS
def test_floods_of_messages_and_blocks_are_stopped(parse: Parser) -> None:
    with pytest.raises(InvalidRequest, match="more than 100000 messages"):
        parse(body(messages=[USER] * (MAX_MESSAGES + 1)))
    many = [{"type": "text", "text": ""}] * (MAX_BLOCKS_PER_MESSAGE + 1)
    with pytest.raises(InvalidRequest, match="more than 10000 blocks"):
        parse(body(messages=[{"role": "user", "content": many}]))


ALL_PARSERS = pytest.mark.parametrize("parse", [parse_message, parse_chat, parse_completion, parse_responses])


@ALL_PARSERS
@pytest.mark.parametrize("unit", [b"{},", b"[],", b'"",', b'{"role":"user","content":"\\\\"},', b'{"a":'])
@pytest.mark.parametrize("field", [b"messages", b"tools", b"unknown"])
def test_max_body_marks_stops_floods_of_values_before_any_is_looked_at(
    parse: Parser, unit: bytes, field: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than MAX_BODY_MARKS brackets and quotes are too large, whatever they are and wherever they stand."""
    monkeypatch.setattr(fields_of, "decode", None)
    flood = b'{"model":"m","' + field + b'":[' + unit * (MAX_BODY_MARKS + 1) + b"1]}"
    with pytest.raises(RequestTooLarge, match=f"request body: more than {MAX_BODY_MARKS} brackets and quotes"):
        parse(flood[:MAX_BODY_BYTES])


@ALL_PARSERS
def test_max_body_commas_stops_floods_of_numbers(parse: Parser, monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_BODY_COMMAS, those of texts with them; as many tokens as one request may give stay below."""
    monkeypatch.setattr(fields_of, "decode", None)
    with pytest.raises(RequestTooLarge, match=f"request body: more than {MAX_BODY_COMMAS} commas"):
        parse(b'{"x":[' + b"1," * (MAX_BODY_COMMAS + 1) + b"1]}")
    assert MAX_PROMPT_TOKENS < MAX_BODY_COMMAS


@PARSERS
def test_large_texts_are_no_floods(parse: Parser) -> None:
    """Quoted JSON, tables of numbers and code, as tools return them, by the megabyte."""
    record = json.dumps({"id": 1, "name": "a", "values": [1, 2, 3], "path": "C:\\dir"})
    for text in (record * 60_000, "1,2,3\n" * 800_000, "if (a[\"b\"]) { c('d'); }\n" * 200_000, "\\" * 2_000_000):
        found = parse(body(messages=[{"role": "user", "content": text}]))
        assert found.messages[0].blocks == (Text(text),)


@PARSERS
@pytest.mark.parametrize("field", ["max_tokens", "temperature", "stream"])
def test_max_number_chars_stops_numbers_without_end(parse: Parser, field: str) -> None:
    """Unread: their digits would take longer than in proportion to their number."""
    ask = body(**{field: 0}).replace(f'"{field}": 0'.encode(), f'"{field}": {"1" * (MAX_NUMBER_CHARS + 1)}'.encode())
    with pytest.raises(InvalidRequest, match=f"{field}: a number of at most {MAX_NUMBER_CHARS} characters"):
        parse(ask)


def test_a_list_is_counted_before_its_entries_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an entry holds does not matter then; what is no list of objects is the reader's to refuse."""
    fields_of.check_length(msgspec.Raw(b"[{},{}]"), "x", most=2, of="things")
    for raw in (b'[{"a":[{}]},{},{}]', b'[ {"type": 7} , {} , {} ]'):
        with pytest.raises(InvalidRequest, match="x: more than 2 things"):
            fields_of.check_length(msgspec.Raw(raw), "x", most=2, of="things")
    with pytest.raises(InvalidRequest, match=r"x\[0\]: Expected `object`, got `int`"):
        fields_of.check_length(msgspec.Raw(b"[1,1,1,1,1,1]"), "x", most=2, of="things")
    monkeypatch.setattr(fields_of, "decode", None)
    for harmless in (None, msgspec.Raw(b"null"), msgspec.Raw(b'"' + b"[{}," * 99 + b'"'), msgspec.Raw(b"[{}]")):
        fields_of.check_length(harmless, "x", most=2, of="things")


@pytest.mark.parametrize(("parse", "field"), [(parse_message, "stop_sequences"), (parse_chat, "stop")])
def test_floods_of_stop_strings_are_stopped(parse: Parser, field: str) -> None:
    with pytest.raises(InvalidRequest, match="more than 16 stop sequences"):
        parse(body(**{field: ["x"] * (MAX_STOP_SEQUENCES + 1)}))
    with pytest.raises(InvalidRequest, match="more than 64 characters"):
        parse(body(**{field: ["x" * (MAX_STOP_SEQUENCE_CHARS + 1)]}))


@PARSERS
@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"model": "\\ud800"}', b'{"max_tokens": NaN}']
)
def test_what_is_no_json_object_is_refused(parse: Parser, raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(raw)


@PARSERS
def test_half_of_a_surrogate_pair_never_reaches_a_tokenizer(parse: Parser) -> None:
    for text in (b"\\ud800", b"\\udc00x", b"\\ud800\\u0041"):
        with pytest.raises(InvalidRequest):
            parse(b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"' + text + b'"}]}')


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(
    ["model", "messages", "max_tokens", "system", "tools", "thinking", "stop", "stop_sequences", "stream", "metadata",
     "temperature", "n", "role", "content", "type", "text", "output_config", "stream_options", "tool_choice", "seed"]
)  # fmt: skip
hostile = st.dictionaries(
    field_names, json_values | st.lists(st.dictionaries(field_names, json_values, max_size=4), max_size=3), max_size=8
)


@given(fields=hostile)
@settings(deadline=None, max_examples=500)
def test_whatever_comes_the_answer_is_a_conversation_or_a_client_error(fields: dict[str, Any]) -> None:
    for parse in (parse_message, parse_chat):
        try:
            read = parse(json.dumps({"model": "m", "max_tokens": 1, "messages": [USER], **fields}).encode())
        except ClientError:
            continue
        assert isinstance(read.model, str)
