"""Ids of calls, for clients and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api.call_ids import native, shown

ACCEPTED = re.compile(r"[A-Za-z0-9_-]+\Z")


@pytest.mark.parametrize("model_id", ["toolu_01AbC", "call_9", "a1B2c3D4e"])
def test_ids_that_clients_accept_stay(model_id: str) -> None:
    assert shown(model_id) == native(model_id) == model_id


@pytest.mark.parametrize("model_id", ["functions.read:0", "", "é", "toolu_x_abc", "a b\n"])
def test_other_ids_are_mapped_and_read_back(model_id: str) -> None:
    assert shown(model_id) != model_id
    assert native(shown(model_id)) == model_id


@given(model_id=st.text(max_size=20) | st.from_regex(ACCEPTED))
@settings(deadline=None)
def test_every_id_becomes_acceptable_and_comes_back(model_id: str) -> None:
    assert ACCEPTED.match(shown(model_id))
    assert native(shown(model_id)) == model_id


@pytest.mark.parametrize(
    "foreign", ["toolu_x_é", "toolu_x_!", "toolu_x_abcde", "toolu_x_gIA", "toolu_x_YWI=", "toolu_x_YWJj"]
)
def test_ids_that_only_look_mapped_are_themselves(foreign: str) -> None:
    assert native(foreign) == foreign
