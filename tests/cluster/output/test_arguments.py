"""Arguments of a call, as they are generated: repaired where only one reading makes sense, else found to be broken."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.output.arguments import Arguments
from router.limits import MAX_ARGUMENT_DEPTH, MAX_ARGUMENT_NUMBER_CHARS

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=5)
STRINGS = ['"a"', "\\", "\\u", "d83d", "\\ud83d", "\\ude00", "\n", "\x01", "é", "🙂", "\\d", "\\n"]
SCALARS = ["12", "-", ".", "e", "0", "true", "fal", "null"]
PARTS = [*'{}[]":,', *STRINGS, *SCALARS, " ", '"a": ', '{"a": "', '"}']
NEARLY_JSON = st.lists(st.sampled_from(PARTS), max_size=20).map("".join)


def read(pieces: list[str]) -> tuple[str, str]:
    arguments = Arguments()
    return "".join([arguments.push(piece) for piece in pieces]), arguments.state


@given(value=OBJECTS, indent=st.sampled_from([None, 2]), ascii_only=st.booleans())
@settings(deadline=None)
def test_an_object_passes_unchanged(value: dict[str, object], indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert read([text]) == (text, "complete")


@given(value=OBJECTS, cut=st.integers(0, 200))
@settings(deadline=None)
def test_every_beginning_of_an_object_can_still_become_one(value: dict[str, object], cut: int) -> None:
    text = json.dumps(value)
    assert read([text[: min(cut, len(text) - 1)]])[1] == "open"


@given(text=NEARLY_JSON, cuts=st.lists(st.integers(0, 60)))
@settings(deadline=None, max_examples=400)
def test_one_chunk_reads_as_byte_by_byte(text: str, cuts: list[int]) -> None:
    at = sorted({min(cut, len(text)) for cut in (0, *cuts, len(text))})
    pieces = [text[i:j] for i, j in pairwise(at)]
    assert read([text]) == read(list(text)) == read(pieces)


@given(text=NEARLY_JSON)
@settings(deadline=None, max_examples=400)
def test_what_is_complete_is_a_json_object_and_can_be_sent_as_utf8(text: str) -> None:
    said, state = read(["{" + text + "}"])
    if state == "complete":
        assert isinstance(json.loads(said), dict)
        json.dumps(json.loads(said), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("source", "repaired"),
    [
        ('{"a": "1\n2\t3\r"}', '{"a": "1\\n2\\t3\\r"}'),
        ('{"a": "\x00\x1b"}', '{"a": "\\u0000\\u001b"}'),
        (r'{"re": "\d+\s"}', r'{"re": "\\d+\\s"}'),
        (r'{"a": "\u12"}', r'{"a": "\\u12"}'),
        (r'{"a": "\uzz"}', r'{"a": "\\uzz"}'),
        ('{"a": "\\\n"}', r'{"a": "\\\n"}'),
        (r'{"a": "\ud83d\ude00"}', r'{"a": "\ud83d\ude00"}'),
        (r'{"a": "\ud83d!"}', r'{"a": "\ufffd!"}'),
        (r'{"a": "\ud83d\n"}', r'{"a": "\ufffd\n"}'),
        (r'{"a": "\ud83d\ud83d\ude00"}', r'{"a": "\ufffd\ud83d\ude00"}'),
        (r'{"a": "\ude00"}', r'{"a": "\ufffd"}'),
        (r'{"a": "\ud83d"}', r'{"a": "\ufffd"}'),
        ('\n {"a": 1}', '{"a": 1}'),
    ],
)
def test_what_has_one_reading_is_repaired(source: str, repaired: str) -> None:
    assert read([source]) == (repaired, "complete")
    json.loads(repaired)


@pytest.mark.parametrize(
    "source",
    [
        *('"a"', "[]", "1", "x", "}", "{a", "{'a'", "{,", '{"a" 1', '{"a"}', '{"a":,', '{"a": 1,}', '{"a": 1 2'),
        *('{"a": 01', '{"a": 1-', '{"a": .5', '{"a": 1.}', '{"a": tru}', '{"a": True', '{"a": NaN'),
        *('{"a": [1,]', '{"a": [1}', '{"a": 1]'),
    ],
)
def test_what_can_no_longer_become_an_object_is_broken(source: str) -> None:
    assert read([source])[1] == "broken"
    assert read(list(source))[1] == "broken"


def test_nothing_is_read_behind_the_end() -> None:
    arguments = Arguments()
    assert arguments.push('{"a": {}}}, "b"') == '{"a": {}}'
    assert arguments.push("x") == ""
    assert arguments.surplus == '}, "b"x'
    assert arguments.state == "complete"


def test_arguments_nested_deeper_than_a_client_could_send_back_are_broken() -> None:
    deepest = '{"a":' * MAX_ARGUMENT_DEPTH + "1" + "}" * MAX_ARGUMENT_DEPTH
    assert read([deepest]) == (deepest, "complete")
    assert read(['{"a":' + deepest + "}"])[1] == "broken"
    assert read(['{"a":' + "[" * 100_000])[1] == "broken"


def test_a_number_too_long_to_be_read_as_one_is_broken() -> None:
    longest = "1" * MAX_ARGUMENT_NUMBER_CHARS
    assert read(['{"a": ' + longest + "}"])[1] == "complete"
    assert read(['{"a": ' + longest + "1}"])[1] == "broken"
