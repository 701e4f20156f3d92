"""Tokens to text, however they come in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cluster.output.assembly import Assembly, Ending, Piece, ScoredToken, Usage
from cluster.output.detokenizer import Detokenizer
from cluster.output.events import CallArguments, CallEnd, CallStart, Event, TextDelta, ThinkingDelta, blocks_of
from cluster.output.parsing import PlainParser
from cluster.output.stop import StopScanner
from router.errors import ReplicaDied
from router.limits import MAX_STOP_SEQUENCE_CHARS, MAX_STOP_SEQUENCES
from tests.cluster.support import packed
from workers.engine import TokenDelta, TokenLogprob

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cluster.models.served import ServedModel


@given(
    tokens=st.lists(st.lists(st.integers(0, 4095), max_size=4), max_size=20),
)
@settings(deadline=None, max_examples=200)
def test_text_in_pieces_equals_decoding_in_one_shot(
    tiny_model: Path, served: ServedModel, tokens: list[list[int]]
) -> None:
    """Any tokens at all, also those that cut characters or are no valid UTF-8 together."""
    whole = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    detokenizer = Detokenizer(served.vocabulary)
    text = "".join([*(detokenizer.push(packed(part)) for part in tokens), detokenizer.finish()])
    assert text == whole.decode([token for part in tokens for token in part], skip_special_tokens=True)


@given(text=st.text(max_size=60))
@settings(deadline=None, max_examples=200)
def test_a_character_never_leaves_in_parts(served: ServedModel, text: str) -> None:
    tokens = served._segmenter.plan(text.replace("<", "")).encode()
    detokenizer = Detokenizer(served.vocabulary)
    parts = [detokenizer.push(tokens[i : i + 4]) for i in range(0, len(tokens), 4)]
    assert "".join(parts) == text.replace("<", "")
    assert detokenizer.finish() == ""


def test_tokens_beyond_the_vocabulary_are_no_text(served: ServedModel) -> None:
    assert Detokenizer(served.vocabulary).push(packed([999_999])) == ""


def naive(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Read character by character; the first stop string that is complete wins, of several the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    parts=st.lists(st.text("ab\n", max_size=5), max_size=12),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4),
)
@settings(deadline=None, max_examples=500)
def test_stop_strings_are_found_however_the_text_is_cut(parts: list[str], stops: list[str]) -> None:
    scanner = StopScanner(stops)
    sent, found = "", None
    for part in parts:
        text, found = scanner.push(part)
        sent += text
        if found is not None:
            break
    else:
        sent += scanner.finish()
    assert (sent, found) == naive("".join(parts), stops)


def test_only_what_could_become_a_stop_string_is_held_back() -> None:
    scanner = StopScanner(["END"])
    assert scanner.push("say EN").text == "say "
    assert scanner.push("TER").text == "ENTER"
    assert scanner.push("E") == ("", None)
    assert scanner.finish() == "E"


def test_the_most_and_longest_stop_strings_are_held_back_and_found() -> None:
    stops = [chr(ord("a") + i) * (MAX_STOP_SEQUENCE_CHARS - 1) + "!" for i in range(MAX_STOP_SEQUENCES)]
    scanner = StopScanner(stops)
    held = "p" * (MAX_STOP_SEQUENCE_CHARS - 1)
    assert scanner.push("say " + held) == ("say ", None)
    assert scanner.push("p") == ("p", None)
    assert scanner.push("!") == ("", stops[-1])


def test_a_stop_string_of_one_character_holds_nothing_back() -> None:
    scanner = StopScanner(["!"])
    assert scanner.push("say") == ("say", None)
    assert scanner.push("so!") == ("so", "!")


@pytest.fixture
def assembly(served: ServedModel) -> Assembly:
    return Assembly(served.vocabulary, PlainParser(), stops=["zz"], prompt_tokens=10)


def said(piece: Piece) -> str:
    """Its text; it has nothing else."""
    return "".join(event.text for event in piece.events if isinstance(event, TextDelta))


def test_usage_counts_and_never_claims_more_cached_tokens_than_the_prompt_has(assembly: Assembly) -> None:
    assembly.push(TokenDelta(tokens=packed([300, 301]), cached_tokens=99))
    assert assembly.usage == Usage(10, 10, 2)
    assembly.push(TokenDelta(tokens=packed([302])))
    assert assembly.usage.output_tokens == 3


def test_held_text_leaves_at_the_end(assembly: Assembly, served: ServedModel) -> None:
    z = served._segmenter.plan("z").encode()
    assert assembly.push(TokenDelta(tokens=z)) == Piece(())
    assert assembly.push(TokenDelta(finish_reason="length")) == Piece((TextDelta("z"),), Ending("length"))


def test_a_character_cut_by_the_end_is_shown_as_such(assembly: Assembly, served: ServedModel) -> None:
    cut = next(token for token in range(4096) if served.vocabulary.bytes_of(packed([token])) == b"\xe9")
    piece = assembly.push(TokenDelta(tokens=packed([cut]), finish_reason="stop"))
    assert piece == Piece((TextDelta("�"),), Ending("end"))


def test_nothing_follows_a_stop_string(assembly: Assembly, served: ServedModel) -> None:
    deltas = [TokenDelta(tokens=served._segmenter.plan(text).encode()) for text in ("a", "zz", "b")]
    piece = assembly.push_all(deltas)
    assert (said(piece), piece.ending) == ("a", Ending("stop_sequence", "zz"))
    assert assembly.push_all(deltas[:1]) == Piece((TextDelta("a"),))


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_generation_that_the_engine_gave_up_is_no_answer(assembly: Assembly, reason: str) -> None:
    with pytest.raises(ReplicaDied, match=reason):
        assembly.push(TokenDelta(finish_reason=reason))  # type: ignore[arg-type]


def test_what_was_said_before_a_fault_is_said_even_when_both_come_together(
    assembly: Assembly, served: ServedModel
) -> None:
    tokens = served._segmenter.plan("so far").encode()
    piece = assembly.push_all([TokenDelta(tokens=tokens), TokenDelta(finish_reason="error")])
    assert (said(piece), piece.ending) == ("so far", None)
    assert isinstance(assembly.fault, ReplicaDied)


class Scripted:
    """Says one event with each token, whatever it is."""

    is_thinking = False

    def __init__(self, *events: Event) -> None:
        self._events = list(events)

    def push(self, text: str, token: int) -> Sequence[Event]:
        event = self._events.pop(0)
        self.is_thinking = isinstance(event, ThinkingDelta)
        return (event,)

    def finish(self, text: str) -> Sequence[Event]:
        return ()

    def passes(self, _data: bytes, _tokens: bytes) -> bool:
        return False


class Passing(Scripted):
    """What passes on all that it may."""

    def passes(self, _data: bytes, _tokens: bytes) -> bool:
        return True


def test_what_follows_half_a_character_cannot_wait(served: ServedModel) -> None:
    """A mark may begin with that character."""
    cut, rest = (
        next(packed([token]) for token in range(4096) if served.vocabulary.bytes_of(packed([token])) == part)
        for part in (b"\xc3", b"\xa9")
    )
    assembly = Assembly(served.vocabulary, Passing(TextDelta("x"), TextDelta("y")), stops=(), prompt_tokens=1)
    waits = []
    for token in (cut, rest):
        waits.append(assembly.waits(token))
        assembly.push(TokenDelta(tokens=token))
    assert [*waits, assembly.waits(cut)] == [True, False, True]


CALL = (CallStart("c", "get"), CallArguments('{"t": "zz"}'), CallEnd())


def told(served: ServedModel, *events: Event) -> tuple[Piece, Assembly]:
    assembly = Assembly(served.vocabulary, Scripted(*events), stops=["zz"], prompt_tokens=10)
    deltas = [TokenDelta(tokens=packed([300])) for _ in events]
    return assembly.push_all([*deltas, TokenDelta(finish_reason="stop")]), assembly


def test_stop_strings_are_looked_for_in_text_alone(served: ServedModel) -> None:
    """Neither in reasoning nor in a call's arguments, nor across one."""
    events = (ThinkingDelta("a zz b"), TextDelta("z"), *CALL, TextDelta("z"))
    assert told(served, *events)[0] == Piece(events, Ending("tool_use"))


def test_text_held_for_a_stop_string_leaves_before_what_follows_it(served: ServedModel) -> None:
    assert blocks_of(told(served, TextDelta("az"), *CALL)[0].events) == blocks_of([TextDelta("az"), *CALL])


def test_an_answer_ends_with_a_tool_only_if_a_call_was_completed(served: ServedModel) -> None:
    assert told(served, *CALL)[0].ending == Ending("tool_use")
    assert told(served, TextDelta("a"))[0].ending == Ending("end")
    assert told(served, CallStart("c", "get"), CallArguments("{"))[0].ending == Ending("end")


def test_reasoning_tokens_are_counted(served: ServedModel) -> None:
    _, assembly = told(served, ThinkingDelta("a"), ThinkingDelta("b"), TextDelta("c"))
    assert assembly.usage == Usage(10, 0, 3, 2)


def test_scores_name_tokens_by_their_bytes(served: ServedModel, assembly: Assembly) -> None:
    score = TokenLogprob(300, -0.5, ((300, -0.5), (301, -2.0)))
    piece = assembly.push(TokenDelta(tokens=packed([300]), logprobs=(score,)))
    one, other = (served.vocabulary.bytes_of(packed([token])) for token in (300, 301))
    assert piece.scores == (ScoredToken(one, -0.5, ((one, -0.5), (other, -2.0))),)
