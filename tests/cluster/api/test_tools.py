"""What every protocol checks of tools, and how JSON stays the client's text."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.tools import check_count, check_name, json_object, schema
from router.errors import InvalidRequest
from router.limits import MAX_JSON_DEPTH, MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_TOOL_NAME_CHARS, MAX_TOOLS


def raw(text: str | bytes) -> msgspec.Raw:
    return msgspec.Raw(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ('{"b":1.0,"a":[1E5, 2]}', '{"b":1.0,"a":[1E5, 2]}'),
        ('{"b": "\\u00e9\\ud83d\\ude00"}', '{"b": "é😀"}'),
        ('{"\\u0061\\/": "\\u0022\\u005c\\u000a"}', '{"a/": "\\"\\\\\\n"}'),
        ('{"a": "\\\\u00e9"}', '{"a": "\\\\u00e9"}'),
        ('{"a": "\\"\\u00e9", "b": ""}', '{"a": "\\"é", "b": ""}'),
    ],
)
def test_keys_and_numbers_stay_and_characters_are_themselves(sent: str, kept: str) -> None:
    assert json_object(raw(sent), "x") == kept


values = st.recursive(
    st.none()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('a"\\/u0é\n\x00😀', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\/é', max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(value=st.dictionaries(st.text('a"\\/é', max_size=3), values, max_size=4), ascii_only=st.booleans())
@settings(deadline=None)
def test_the_text_means_the_same_however_the_client_escapes(value: dict[str, Any], ascii_only: bool) -> None:
    kept = json_object(raw(json.dumps(value, ensure_ascii=ascii_only)), "x")
    assert json.loads(kept) == value
    assert kept == json_object(raw(json.dumps(value, ensure_ascii=False)), "x")
    assert kept == json_object(raw(kept), "x")


@pytest.mark.parametrize(
    "wrong", [b"[]", b"null", b'"x"', b'{"a":', b'{"a":"\xff"}', b'{"a":"\\ud800"}', b'{"a":1e999}']
)
def test_what_is_no_object_is_refused(wrong: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^x"):
        json_object(raw(wrong), "x")


def test_max_schema_bytes_stops_one_tool_from_filling_the_prompt() -> None:
    """MAX_SCHEMA_BYTES of a schema are taken, not one more."""
    fits = '{"a":"' + "x" * (MAX_SCHEMA_BYTES - 8) + '"}'
    assert schema(raw(fits), "x") == fits
    with pytest.raises(InvalidRequest, match=f"x: a schema has more than {MAX_SCHEMA_BYTES} bytes"):
        schema(raw(fits + " "), "x")


def test_max_schema_depth_stops_schemas_that_nest_too_deeply_for_grammars() -> None:
    """MAX_SCHEMA_DEPTH is less than what arguments may nest."""
    assert MAX_SCHEMA_DEPTH < MAX_JSON_DEPTH

    def nested(levels: int) -> msgspec.Raw:
        return raw('{"a":' * (levels - 1) + "{}" + "}" * (levels - 1))

    schema(nested(MAX_SCHEMA_DEPTH), "x")
    json_object(nested(MAX_JSON_DEPTH), "x")
    with pytest.raises(InvalidRequest, match=f"x: nested deeper than {MAX_SCHEMA_DEPTH} levels"):
        schema(nested(MAX_SCHEMA_DEPTH + 1), "x")


def test_max_tool_name_chars_stops_endless_names() -> None:
    """MAX_TOOL_NAME_CHARS may be used, and at least one must be."""
    assert check_name("x" * MAX_TOOL_NAME_CHARS, "p")
    with pytest.raises(InvalidRequest, match=r"p: `x+` has more than 128 characters"):
        check_name("x" * (MAX_TOOL_NAME_CHARS + 1), "p")
    with pytest.raises(InvalidRequest, match="p: a tool needs a name"):
        check_name("", "p")


def test_max_tools_stops_floods_of_tools() -> None:
    """MAX_TOOLS may be offered."""
    check_count(range(MAX_TOOLS), "tools")
    with pytest.raises(InvalidRequest, match=f"tools: more than {MAX_TOOLS} tools"):
        check_count(range(MAX_TOOLS + 1), "tools")
