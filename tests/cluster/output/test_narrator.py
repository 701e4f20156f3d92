"""What parsers say, told as events: well-formed, in order, and with nothing lost that they drop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.output.events import (
    CallArguments,
    CallBroken,
    CallEnd,
    CallStart,
    TextDelta,
    ThinkingDelta,
)
from cluster.output.families import CallMarks
from cluster.output.framing import Framing
from cluster.output.narrator import CallPiece, Narrator, Parsed

if TYPE_CHECKING:
    from cluster.output.events import Event

MARKS = CallMarks(("<calls>", "<call>"), "</calls>")
FIRST, SECOND = CallStart("1", "get"), CallStart("2", "put")


def narrator(marks: CallMarks | None = MARKS) -> Narrator:
    return Narrator(marks, ["<think>", "</think>"])


def test_calls_told_in_turns_leave_one_after_the_other() -> None:
    """Clients know one open block; what a later call has said waits until the earlier one has ended."""
    telling = narrator()
    assert telling.tell("<calls>..", Parsed(calls=(CallPiece(0, "1", "get", '{"a"'),))) == [
        FIRST,
        CallArguments('{"a"'),
    ]
    assert telling.tell("..", Parsed(calls=(CallPiece(1, "2", "put", '{"b": 2}'),))) == []
    assert telling.tell("..", Parsed(calls=(CallPiece(0, "", "", ': "x'),))) == [CallArguments(': "x')]
    assert telling.tell("..", Parsed(calls=(CallPiece(0, "", "", '"}'),))) == [
        *(CallArguments('"}'), CallEnd()),
        *(SECOND, CallArguments('{"b": 2}'), CallEnd()),
    ]
    assert telling.finish() == []


def test_a_broken_call_does_not_hold_up_the_next() -> None:
    telling = narrator()
    telling.tell("<calls><call>get", Parsed(calls=(CallPiece(0, "1", "get", '{"a": oops'),)))
    events = telling.tell("<call>put", Parsed(calls=(CallPiece(1, "2", "put", "{}"),)))
    assert events == [TextDelta("<calls><call>get"), SECOND, CallArguments("{}"), CallEnd()]


def test_a_broken_call_that_was_announced_is_withdrawn_with_its_source() -> None:
    telling = narrator()
    telling.tell('<calls><call>get {"a"', Parsed(calls=(CallPiece(0, "1", "get", '{"a"'),)))
    assert telling.tell(" oops", Parsed(calls=(CallPiece(0, "", "", " oops"),))) == []
    assert telling.end_region() == [CallBroken(), TextDelta('<calls><call>get {"a" oops')]


def test_arguments_of_a_call_that_never_began_are_no_call() -> None:
    telling = narrator()
    assert telling.tell("<calls>{}", Parsed(calls=(CallPiece(0, "", "", "{}"),))) == []
    assert telling.finish() == [TextDelta("<calls>{}")]


def test_a_name_without_arguments_is_not_announced() -> None:
    telling = narrator()
    assert telling.tell("<calls><call>get", Parsed(calls=(CallPiece(0, "1", "get"),))) == []
    assert telling.finish() == [TextDelta("<calls><call>get")]


def test_words_that_a_parser_swallows_are_said_before_what_it_says_next() -> None:
    telling = narrator()
    assert telling.tell("lost ", Parsed()) == []
    assert telling.tell("found", Parsed(content="found")) == [TextDelta("lost "), TextDelta("found")]


def test_marks_that_a_parser_takes_away_are_not_said() -> None:
    telling = narrator()
    assert telling.tell("<think>", Parsed()) == []
    assert telling.tell("hm", Parsed(reasoning="hm")) == [ThinkingDelta("hm")]
    assert telling.tell("</think>", Parsed()) == []
    assert telling.tell("so", Parsed(content="so")) == [TextDelta("so")]
    assert telling.finish() == []


def test_what_a_parser_rewrites_is_believed() -> None:
    telling = narrator()
    assert telling.tell("&lt;", Parsed(content="<")) == [TextDelta("<")]
    assert telling.finish() == []


def test_a_region_ends_where_its_mark_does_however_it_is_cut() -> None:
    telling = narrator()
    assert telling.cut("</calls> z") == 0, "there is none"
    telling.tell("<calls>nonsense</ca", Parsed())
    assert telling.cut("lls> z") == len("lls>")
    telling.tell("lls>", Parsed())
    assert telling.end_region() == [TextDelta("<calls>nonsense</calls>")]
    assert telling.is_settled
    assert telling.cut("</calls>") == 0


def test_between_a_calls_end_and_its_regions_end_nothing_is_said() -> None:
    telling = narrator()
    telling.tell("<calls><call>", Parsed(calls=(CallPiece(0, "1", "get", "{}"),)))
    assert telling.tell("}\n```", Parsed(content="```")) == []
    telling.tell("</calls>", Parsed())
    assert telling.end_region() == []


def test_words_behind_a_call_whose_region_never_ends_are_said_at_the_end() -> None:
    telling = narrator()
    telling.tell("<calls><call>", Parsed(calls=(CallPiece(0, "1", "get", "{}"),)))
    telling.tell("}\nDone.", Parsed())
    assert telling.finish() == [TextDelta("Done.")]


def test_without_known_marks_a_parser_is_believed_once_it_has_told_a_call() -> None:
    """What it leaves out then may be marks that nobody knows here."""
    telling = narrator(None)
    telling.tell("[get()]", Parsed(calls=(CallPiece(0, "1", "get", "{}"),)))
    telling.tell("<|end_of_calls|>", Parsed())
    assert telling.finish() == []
    silent = narrator(None)
    silent.tell("[get(", Parsed())
    assert silent.finish() == [TextDelta("[get(")]


def test_what_follows_a_call_without_a_closing_mark_is_its_surplus() -> None:
    telling = narrator(CallMarks(("[CALLS]",), ""))
    telling.tell("[CALLS]get", Parsed(calls=(CallPiece(0, "1", "get", '{"a": ""'),)))
    events = telling.tell("} so", Parsed(calls=(CallPiece(0, "", "", "} so"),)))
    assert events == [CallArguments("}"), CallEnd()]
    assert telling.finish() == [TextDelta("so")]


def test_when_a_parser_fails_all_it_had_not_said_is_text() -> None:
    telling = narrator()
    telling.tell('<calls><call>get {"a"', Parsed(calls=(CallPiece(0, "1", "get", '{"a"'),)))
    assert telling.give_up(": 1") == [CallBroken(), TextDelta('<calls><call>get {"a": 1')]
    assert telling.say(" more") == [TextDelta(" more")]
    assert telling.finish() == []


def framed(*words: tuple[str, str]) -> list[Event]:
    framing = Framing()
    events: list[Event] = []
    for kind, text in words:
        match kind:
            case "think":
                events += framing.think(text)
            case "say":
                events += framing.say(text)
            case _:
                framing.end_block()
    return [*events, *framing.finish()]


def test_newlines_around_reasoning_are_the_templates() -> None:
    assert framed(("think", "\n"), ("think", "\na\n"), ("think", "\nb\n\n"), ("say", "\n"), ("say", "\nc\n")) == [
        *(ThinkingDelta("a"), ThinkingDelta("\n\nb")),
        TextDelta("c\n"),
    ]


def test_white_space_between_calls_is_no_text() -> None:
    assert framed(("call", ""), ("say", "\n"), ("say", " "), ("call", ""), ("say", "\n\n")) == []


def test_text_behind_a_call_keeps_what_it_begins_with_but_newlines() -> None:
    assert framed(("call", ""), ("say", "\n"), ("say", "  then")) == [TextDelta("  then")]


def test_white_space_at_the_start_is_the_models() -> None:
    assert framed(("say", "\n"), ("say", "  a")) == [TextDelta("\n  a")]
    assert framed(("say", "\n")) == [TextDelta("\n")]
    assert framed(("say", "\n"), ("call", "")) == []
    assert framed(("say", "\n"), ("think", "a")) == [ThinkingDelta("a")]


def test_a_call_that_its_parser_gives_up_is_said_before_what_it_says_next() -> None:
    telling = narrator()
    assert telling.tell("<calls>x", Parsed()) == []
    assert telling.tell(" so", Parsed(content="so")) == [TextDelta("<calls>x "), TextDelta("so")]


def test_words_behind_a_call_that_nothing_closes_are_said_as_they_come() -> None:
    telling = narrator(CallMarks(("[CALLS]",), ""))
    telling.tell("[CALLS]get", Parsed(calls=(CallPiece(0, "1", "get", "{}"),)))
    assert telling.tell("}\nso", Parsed(content="so")) == [TextDelta("so")]


def test_a_complete_call_is_told_when_an_earlier_one_turns_out_cut_off() -> None:
    telling = narrator()
    telling.tell("<calls><call>get", Parsed(calls=(CallPiece(0, "1", "get", "{"),)))
    telling.tell("<call>put", Parsed(calls=(CallPiece(1, "2", "put", "{}"),)))
    assert telling.end_region() == [
        *(CallBroken(), TextDelta("<calls><call>get")),
        *(SECOND, CallArguments("{}"), CallEnd()),
    ]
