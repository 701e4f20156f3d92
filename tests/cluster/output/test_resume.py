"""What the next replica is asked for when an answer goes on there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.output.resume import rest_of, seed_after
from router.errors import CutShort
from workers.engine import Sampling, Structured

FORM = Structured(kind="json", spec="{}")
WISH = Sampling(max_tokens=10, temperature=0.5, top_k=7, min_p=0.1, logit_bias=((1, 2.0),), structured=FORM)


def test_the_rest_is_the_same_wish_less_what_there_is() -> None:
    """The form too: the engine advances it over the beginning."""
    rest = rest_of(WISH, made_tokens=4)
    assert rest == msgspec.structs.replace(WISH, max_tokens=6)


def test_nothing_is_left_of_an_answer_that_has_all_its_tokens() -> None:
    assert rest_of(WISH, made_tokens=10) is None


@pytest.mark.parametrize(
    "change", [{"logprobs": 0}, {"logprobs": 5}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}]
)
def test_what_counts_the_answers_own_tokens_cannot_go_on(change: dict[str, Any]) -> None:
    """Not even when nothing is left: whoever asked for scores does not have those of the end."""
    with pytest.raises(CutShort):
        rest_of(msgspec.structs.replace(WISH, **change), made_tokens=10)


def test_a_repetition_penalty_goes_on_for_it_counts_the_prompt_too() -> None:
    wish = msgspec.structs.replace(WISH, repetition_penalty=1.2)
    assert rest_of(wish, made_tokens=1) == msgspec.structs.replace(wish, max_tokens=9)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**20))
def test_a_seed_goes_on_as_another_that_the_engine_takes_and_that_the_place_decides(seed: int, made: int) -> None:
    """The same cut continues alike; another one, or the beginning, draws other numbers."""
    rest = rest_of(Sampling(max_tokens=2**21, seed=seed), made_tokens=made)
    assert rest is not None
    assert rest.seed == seed_after(seed, made_tokens=made)
    assert 0 <= rest.seed < 2**63
    assert rest.seed not in (seed, seed_after(seed, made_tokens=made + 1))
