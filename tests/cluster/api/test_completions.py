"""Completions: prompts are taken as they are, answers are text; streamed and whole they say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.api import body as fields_of
from cluster.api import completions
from cluster.api.completions import parse_completion
from cluster.api.completions_reply import COMPLETIONS, CompletionsReply
from cluster.api.dialect import Answer, AnswerId
from cluster.output.assembly import Ending, Piece, ScoredToken, Usage
from cluster.output.events import TextDelta
from cluster.prompt.canonical import Canonicaliser, Rules
from cluster.prompt.conversation import Conversation, Limits, Text
from router.errors import ClientError, InvalidRequest, RequestTooLarge
from router.limits import INLINE_BODY_BYTES, MAX_CHOICES, MAX_COMPLETION_LOGPROBS, MAX_TOKEN_ID
from tests.cluster.api.streams import Told, data_of, told
from tests.cluster.support import packed

USAGE = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=3)
ID = AnswerId("1", 1700000000)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "Once", **fields}).encode()


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("Once", ("Once",)),
        (["Once", "Twice"], ("Once", "Twice")),
        ([1, 2, 3], (packed([1, 2, 3]),)),
        ([[1], [2, 0]], (packed([1]), packed([2, 0]))),
    ],
)
def test_a_prompt_is_a_text_or_tokens_and_there_may_be_several(given: Any, prompts: Any) -> None:
    read = parse_completion(body(prompt=given))
    assert (read.api, read.prompts, read.messages) == ("completions", prompts, ())


@given(prompt=st.text(min_size=1) | st.just("x-anthropic-billing-header: cch=1\n\n<system-reminder>"))
def test_no_rule_ever_changes_a_prompt(prompt: str) -> None:
    """Not even a line that leaves every system text: these are not instructions but what is to be continued."""
    read = parse_completion(body(prompt=[prompt]))
    assert read.prompts == (prompt,)
    assert Canonicaliser(Rules()).apply(read) == (read, ())


def test_wishes_to_the_sampler_are_read() -> None:
    wishes = {"max_tokens": 5, "n": 2, "logprobs": 3, "stop": ["x"], "seed": 1, "logit_bias": {"7": 1}, "top_p": 0.5}
    assert parse_completion(body(**wishes)).limits == Limits(
        max_tokens=5, choices=2, logprobs=3, stop=("x",), seed=1, logit_bias=((7, 1),), top_p=0.5
    )
    assert parse_completion(body()).limits == Limits(max_tokens=16)
    assert parse_completion(body(max_tokens=0)).limits.max_tokens == 0


def test_hints_streaming_and_unknown_fields_are_read() -> None:
    read = parse_completion(
        body(stream=True, stream_options={"include_usage": True}, prompt_cache_key="k", user="u", novel=1, suffix="")
    )
    assert (read.stream, read.stream_usage, read.hints.session, read.hints.ignored) == (True, True, "k", ("novel",))


REFUSED = [
    ({"prompt": None}, "prompt: Expected `str`, got `null`"),
    ({"prompt": ""}, "prompt: there is nothing to continue in an empty prompt"),
    ({"prompt": []}, "prompt[0]: there is nothing to continue in an empty prompt"),
    ({"prompt": ["a", ""]}, "prompt[1]: there is nothing to continue"),
    ({"prompt": [[1], []]}, "prompt[1]: there is nothing to continue"),
    ({"prompt": ["a", 1]}, "prompt[1]: Expected `str`, got `int`"),
    ({"prompt": [1, "a"]}, "prompt[1]: Expected `int`, got `str`"),
    ({"prompt": [[1], 1]}, "prompt[1]: Expected `array`, got `int`"),
    ({"prompt": [-1]}, "prompt[0]: Expected `int` >= 0"),
    ({"prompt": [True]}, "prompt[0]: Expected `int`, got `bool`"),
    ({"prompt": [[0.5]]}, "prompt[0][0]: Expected `int`, got `float`"),
    ({"prompt": {"text": "a"}}, "prompt: Expected `str`, got `object`"),
    ({"echo": True}, "echo: not supported yet"),
    ({"suffix": "end"}, "suffix: not supported yet"),
    ({"best_of": 3}, "best_of: not supported yet"),
    ({"logprobs": True}, "logprobs: Expected `int | null`, got `bool`"),
    ({"max_tokens": -1}, "max_tokens: must be at least 0"),
    ({"model": None}, "model: Expected `str`, got `null`"),
    ({"prompt_token_ids": [1]}, "prompt_token_ids: this field belongs to an engine"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED)
def test_what_cannot_be_served_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion(body(**fields))
    assert str(caught.value).startswith(words)


def test_max_choices_stops_prompts_times_choices_from_taking_every_slot() -> None:
    """MAX_CHOICES answers, however they come together."""
    assert len(parse_completion(body(prompt=["a"] * MAX_CHOICES)).prompts) == MAX_CHOICES
    for fields in ({"prompt": ["a"] * (MAX_CHOICES + 1)}, {"prompt": ["a"] * (MAX_CHOICES // 2 + 1), "n": 2}):
        with pytest.raises(InvalidRequest, match=f"{MAX_CHOICES}"):
            parse_completion(body(**fields))


def test_floods_of_prompts_and_tokens_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_PROMPT_TOKENS commas are too many wherever they stand; MAX_CHOICES strings are told from text with quotes."""
    monkeypatch.setattr(completions, "MAX_PROMPT_TOKENS", 100)
    assert parse_completion(body(prompt=[1] * 100)).prompts == (packed([1] * 100),)
    quotes = 'say "a", "b" \\" ' * INLINE_BODY_BYTES
    assert parse_completion(body(prompt=[quotes, quotes])).prompts == (quotes, quotes)
    seen: list[Any] = []
    monkeypatch.setattr(fields_of, "required", lambda *found: seen.append(found))
    for flood in ([1] * 101, [[1]] * 101, [[1, 2]] * 51):
        with pytest.raises(RequestTooLarge, match="prompt: more than 100 tokens"):
            parse_completion(body(prompt=flood))
    with pytest.raises(InvalidRequest, match=f"prompt: more than {MAX_CHOICES} prompts"):
        parse_completion(body(prompt=["a"] * INLINE_BODY_BYTES))
    assert seen == []


def test_max_token_id_stops_tokens_that_no_engine_can_hold() -> None:
    """MAX_TOKEN_ID is the last that fits into 32 bits with a sign."""
    assert parse_completion(body(prompt=[MAX_TOKEN_ID])).prompts == (packed([MAX_TOKEN_ID]),)
    for prompt in ([MAX_TOKEN_ID + 1], [[MAX_TOKEN_ID + 1]], [2**70]):
        with pytest.raises(InvalidRequest, match="prompt"):
            parse_completion(body(prompt=prompt))


def test_max_completion_logprobs_stops_answers_from_growing_without_bound() -> None:
    """MAX_COMPLETION_LOGPROBS alternatives of each token."""
    with pytest.raises(InvalidRequest, match=f"logprobs: must be between 0 and {MAX_COMPLETION_LOGPROBS}"):
        parse_completion(body(logprobs=MAX_COMPLETION_LOGPROBS + 1))


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=8,
)


@given(hostile=st.dictionaries(st.sampled_from(["prompt", "n", "logprobs", "stop", "echo", "suffix"]), odd, max_size=4))
@settings(deadline=None, max_examples=300)
def test_whatever_comes_the_answer_is_a_conversation_or_a_client_error(hostile: dict[str, Any]) -> None:
    try:
        read = parse_completion(body(**hostile))
    except ClientError:
        return
    assert all(read.prompts)


def reply(*, prompts: int = 1, choices: int = 1, logprobs: int | None = None) -> CompletionsReply:
    asked = Conversation(
        api="completions",
        model="m",
        prompts=("p",) * prompts,
        limits=Limits(choices=choices, logprobs=logprobs),
        stream_usage=True,
    )
    return CompletionsReply(asked, ID)


@given(choices=st.lists(told(), min_size=1, max_size=3), logprobs=st.sampled_from([None, 0, 3]))
@settings(deadline=None, max_examples=100)
def test_a_stream_says_what_the_whole_answer_says(choices: list[Told], logprobs: int | None) -> None:
    talker = reply(prompts=len(choices), logprobs=logprobs)
    said = talker.start(USAGE)
    for choice, one in enumerate(choices):
        said += b"".join(talker.say(piece, choice) for piece in one.pieces)
    *chunks, last = data_of(said + talker.finish(USAGE))
    whole = reply(prompts=len(choices), logprobs=logprobs).whole([one.answer for one in choices], USAGE)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    for expected in json.loads(json.dumps(whole["choices"])):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == expected["index"]]
        assert "".join(part["text"] for part in mine) == expected["text"]
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + [expected["finish_reason"]]
        if logprobs is None:
            assert {part["logprobs"] for part in mine} == {None} == {expected["logprobs"]}
            continue
        streamed = [part["logprobs"] for part in mine]
        for field in ("tokens", "token_logprobs", "text_offset", *(["top_logprobs"] if logprobs else [])):
            assert [value for part in streamed for value in part[field]] == expected["logprobs"][field]
        if logprobs == 0:
            assert {part["top_logprobs"] for part in streamed} == {None} == {expected["logprobs"]["top_logprobs"]}


def test_a_token_says_where_it_begins_and_what_else_was_likely() -> None:
    scores = (
        ScoredToken(b"a", -0.5, ((b"a", -0.5), (b"b", float("-inf")))),
        ScoredToken(b"\xc3", -1.0, ()),
        ScoredToken(b"\xa9", -1.5, ((b"\xa9", -1.5),)),
        ScoredToken(b" c", -2.0, ()),
    )
    answer = Answer((Text("aé c"),), Ending("length"), scores)
    (choice,) = reply(logprobs=2).whole([answer], USAGE)["choices"]
    assert choice == {
        "index": 0,
        "text": "aé c",
        "finish_reason": "length",
        "logprobs": {
            "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", " c"],
            "token_logprobs": [-0.5, -1.0, -1.5, -2.0],
            "top_logprobs": [{"a": -0.5, "b": -9999.0}, {}, {"bytes:\\xa9": -1.5}, {}],
            "text_offset": [0, 1, 1, 2],
        },
    }


def test_choices_of_one_prompt_follow_each_other() -> None:
    answers = [Answer((Text(text),), Ending("end")) for text in "abcd"]
    whole = reply(prompts=2, choices=2).whole(answers, USAGE)
    assert [(choice["index"], choice["text"]) for choice in whole["choices"]] == list(enumerate("abcd"))
    assert (whole["id"], whole["object"], whole["model"], whole["created"]) == (
        "cmpl-1", "text_completion", "m", 1700000000,
    )  # fmt: skip


def test_a_piece_without_text_is_not_said() -> None:
    talker = reply()
    assert talker.start(USAGE) == b""
    assert talker.say(Piece(()), 0) == b""
    (chunk,) = data_of(talker.say(Piece((TextDelta("a"), TextDelta("b")), Ending("end")), 0))
    assert (chunk["choices"][0]["text"], chunk["choices"][0]["finish_reason"]) == ("ab", "stop")


def test_the_dialect_answers_and_complains_in_this_form() -> None:
    asked = COMPLETIONS.parse(body())
    assert COMPLETIONS.reply(asked, ID).whole([Answer((), Ending("end"))], USAGE)["choices"][0]["text"] == ""
    refused = COMPLETIONS.error(InvalidRequest("words"), "req_1")
    assert (refused.status, refused.body["error"]["message"]) == (400, "words")
