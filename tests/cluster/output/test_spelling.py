"""Marks in letters are the tokens they stand for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.output.spelling import Heard, Spelling

MARKS = {"<a>": 1, "<ab>": 2, "</a>": 3}


def heard(*tokens: tuple[str, int]) -> list[Heard]:
    spelling = Spelling(MARKS)
    return [*(piece for text, token in tokens for piece in spelling.push(text, token)), *spelling.finish()]


def test_a_mark_in_letters_is_its_token() -> None:
    assert heard(("x<", 9), ("a", 8), (">y", 7)) == [Heard("x", []), Heard("<a>", [1]), Heard("y", [])]
    assert heard(("<ab></a>", 9)) == [Heard("<ab>", [2]), Heard("</a>", [3])]


def test_a_mark_that_is_a_token_stays_one() -> None:
    assert heard(("x", 9), ("<a>", 1)) == [Heard("x", [9]), Heard("<a>", [1])]
    assert heard(("<", 9), ("<a>", 1)) == [Heard("<", []), Heard("<a>", [1])]


def test_only_what_could_become_a_mark_is_held_back() -> None:
    spelling = Spelling(MARKS)
    assert spelling.push("x <", 9) == [Heard("x ", [])]
    assert spelling.push("b", 9) == [Heard("<b", [])]
    assert spelling.push("</", 9) == []
    assert spelling.finish() == [Heard("</", [])]
    assert spelling.finish() == []


@given(st.lists(st.text("<ab/>", max_size=4), max_size=12))
def test_no_letter_is_lost_and_every_mark_is_found(parts: list[str]) -> None:
    pieces = heard(*((part, 9) for part in parts))
    assert "".join(piece.text for piece in pieces) == "".join(parts)
    whole = Spelling(MARKS)
    expected = [piece for piece in [*whole.push("".join(parts), 9), *whole.finish()] if piece.tokens not in ([], [9])]
    assert [piece for piece in pieces if piece.tokens not in ([], [9])] == expected


def test_without_marks_all_is_text() -> None:
    assert Spelling({}).push("<a>", 1) == [Heard("<a>", [1])]
