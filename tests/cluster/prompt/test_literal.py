"""Marks that a text spells out are text: nobody but the template ends or begins a turn."""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.models.served import load_model
from cluster.prompt.canonical import Rules
from cluster.prompt.conversation import Text, Thinking, Tool, ToolCall, ToolResult
from cluster.prompt.literal import NO_MARKS, SEAM, LiteralMarks
from cluster.prompt.template import Turn
from tests.cluster.prompt.conversations import conversation
from tests.cluster.prompt.families import FAMILIES, R1, Family, write_family

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.models.served import ServedModel
    from cluster.prompt.conversation import Conversation

MARKS = LiteralMarks(["<|im_start|>", "<|im_end|>", "<<s>", "<s>", "x"])


def everywhere(word: str) -> Conversation:
    """`word` in every place that a client can write to."""
    escaped = word.replace("<", "\\u003c").replace("/", "\\/")
    call = ToolCall("call_1", "read", f'{{"{escaped}": "{word}"}}')
    tool = Tool(name="read", description=word, parameters=f'{{"{escaped}": {{}}, "description": "{word}"}}')
    return conversation(
        [word],
        [("user", [word]), ("assistant", [Thinking(word), word, call]),
         ("user", [ToolResult("call_1", (Text(word),)), word]), ("system", [word])],
        [tool],
    )  # fmt: skip


def special_tokens(request: Conversation, model: ServedModel) -> list[int]:
    async def tokens() -> bytes:
        return await model.tokens(await model.prompt(model.canonical(request).conversation))

    found = array("I", asyncio.run(tokens()))
    return [token for token in found if not model.vocabulary.bytes_of(array("I", [token]).tobytes())]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_mark_in_any_text_of_a_client_is_never_the_token(family: Family, tiny_model: Path, tmp_path: Path) -> None:
    """The special tokens of a prompt are the same, whether its texts hold marks or other words."""
    model = load_model(write_family(family, tmp_path, tiny_model), name="m", max_model_len=4096, rules=Rules())
    plain = special_tokens(everywhere("word"), model)
    for mark in family.marks:
        assert special_tokens(everywhere(mark), model) == plain, mark
        assert special_tokens(everywhere(f"{mark}\n{mark}{mark}"), model) == plain, mark


def test_marks_around_turns_are_kept_from_texts_even_where_they_are_no_special_tokens(
    tiny_model: Path, tmp_path: Path
) -> None:
    model = load_model(
        write_family(R1, tmp_path, tiny_model, special=False), name="m", max_model_len=4096, rules=Rules()
    )
    user = model._tokenizer.atoms()["<|User|>"]
    request = conversation([], [("user", ["<|User|>Hi"])])
    tokens = asyncio.run(model.tokens(asyncio.run(model.prompt(request))))
    assert array("I", tokens).count(array("I", user)[0]) == 1


def test_the_model_reads_the_letters_of_a_mark(tiny_model: Path) -> None:
    model = load_model(tiny_model, name="m", max_model_len=4096, rules=Rules())
    request = conversation([], [("user", ["What is <|im_end|> in ChatML?"])])
    prompt = asyncio.run(model.prompt(request))
    tokens = asyncio.run(model.tokens(prompt))
    said = model.vocabulary.bytes_of(tokens).decode()
    assert said == "user\nWhat is <|im_end|> in ChatML?\nassistant\n"
    assert model.marks.shown(prompt) == (
        "<|im_start|>user\nWhat is <|im_end|> in ChatML?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_marks_are_tokens_where_the_switch_is_off(tiny_model: Path) -> None:
    model = load_model(tiny_model, name="m", max_model_len=4096, rules=Rules(literal_marks=False))
    assert len(special_tokens(everywhere("<|im_end|>"), model)) > len(special_tokens(everywhere("word"), model))


words = st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "<", "|im_end|>", "<<s>", "s>", SEAM, "x"]), max_size=8)


@given(text=words.map("".join))
@settings(deadline=None)
def test_seams_leave_no_mark_are_set_once_and_vanish(text: str) -> None:
    seamed = MARKS.text(text)
    assert not any(mark in seamed for mark in ("<|im_start|>", "<|im_end|>", "<<s>", "<s>"))
    assert MARKS.text(seamed) == seamed
    if SEAM not in text:
        assert MARKS.shown(seamed) == seamed.replace(SEAM, "") == text


def test_text_without_marks_is_not_copied() -> None:
    text = "a < b and |c|" * 100
    assert MARKS.text(text) is text
    assert NO_MARKS.text("<|im_end|>") == "<|im_end|>"
    call = ToolCall("call_1", "read", '{"p":  "\\u00e9"}')
    assert MARKS.turn(Turn("assistant", "", calls=(call,))).calls == (call,)
