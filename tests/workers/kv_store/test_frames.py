"""A frame is the block that was asked for, whole and unchanged, or it is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.kv_store.frames import (
    HEADER_BYTES,
    KEY_BYTES,
    LAYOUT_BYTES,
    MAGIC,
    BadFrame,
    ForeignLayout,
    decoded,
    encoded,
)

KEY = bytes(range(KEY_BYTES))
LAYOUT = b"layout" + bytes(LAYOUT_BYTES - 6)
PAYLOADS = st.binary(max_size=300)


@given(PAYLOADS)
def test_what_was_encoded_is_decoded(payload: bytes) -> None:
    frame = encoded(payload, key=KEY, layout=LAYOUT)
    assert frame[: len(MAGIC)] == MAGIC
    assert len(frame) == HEADER_BYTES + len(payload)
    assert decoded(frame, key=KEY, layout=LAYOUT) == payload


@given(PAYLOADS, st.data())
def test_a_single_flipped_bit_is_refused_wherever_it_is(payload: bytes, data: st.DataObject) -> None:
    frame = bytearray(encoded(payload, key=KEY, layout=LAYOUT))
    bit = data.draw(st.integers(0, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadFrame):
        decoded(frame, key=KEY, layout=LAYOUT)


@given(PAYLOADS, st.data())
def test_a_frame_that_was_cut_or_grew_is_refused(payload: bytes, data: st.DataObject) -> None:
    frame = encoded(payload, key=KEY, layout=LAYOUT)
    cut = data.draw(st.integers(0, len(frame) - 1))
    for other in (frame[:cut], frame + frame[:cut] + b"\0"):
        with pytest.raises(BadFrame):
            decoded(other, key=KEY, layout=LAYOUT)


@given(st.binary(max_size=2 * HEADER_BYTES))
def test_any_bytes_give_a_payload_or_the_one_error(frame: bytes) -> None:
    with pytest.raises(BadFrame):
        decoded(frame, key=KEY, layout=LAYOUT)


def test_a_block_under_another_blocks_name_is_refused() -> None:
    """A file that was moved must not be taken for what its name says."""
    with pytest.raises(BadFrame, match="another key"):
        decoded(encoded(b"abc", key=KEY, layout=LAYOUT), key=KEY[::-1], layout=LAYOUT)


def test_a_block_of_another_layout_is_told_from_a_broken_one() -> None:
    """It is good for the engine that wrote it, and must not be removed."""
    with pytest.raises(ForeignLayout):
        decoded(encoded(b"abc", key=KEY, layout=LAYOUT), key=KEY, layout=LAYOUT[::-1])


@pytest.mark.parametrize(("key", "layout"), [(KEY[1:], LAYOUT), (KEY, LAYOUT + b"x")])
def test_keys_and_layouts_of_another_length_are_a_mistake(key: bytes, layout: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        encoded(b"", key=key, layout=layout)
