"""How the families that agents are served with write reasoning and calls: each read by its own parser, over the demo
tokenizer with the family's marks as special tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from cluster.output.assembly import Assembly
from cluster.output.events import CallBroken, TextDelta, ThinkingDelta, blocks_of
from cluster.output.families import Family
from cluster.prompt.conversation import Text, Thinking
from tests.cluster.output.reading import NO_TOOLS, OFFERED, PROMPT, Model, call, merged, model_with, without_ids
from workers.engine import TokenDelta

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.output.events import Event


class Writing(NamedTuple):
    """How a family writes. `one` calls get(a=1); `two` calls get(a=1, t="é") and put(t="x") in one region."""

    family: Family
    marks: tuple[str, ...]
    think: str
    one: str
    two: str
    nonsense: str


_DEEPSEEK = (
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *("<think>", "</think>"),
)
_THINK = "<think>\nhm\n</think>\n\n"


def _xml(name: str, **values: object) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def _glm(name: str, **values: object) -> str:
    inside = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in values.items())
    return f"<tool_call>{name}\n{inside}</tool_call>"


def _v3(*calls: tuple[str, str]) -> str:
    inside = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{inside}<｜tool▁calls▁end｜>"


def _v31(*calls: tuple[str, str]) -> str:
    inside = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>" for name, arguments in calls
    )
    return f"<｜tool▁calls▁begin｜>{inside}<｜tool▁calls▁end｜>"


def _kimi(*calls: tuple[str, str]) -> str:
    inside = "".join(
        f"<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        for at, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inside}<|tool_calls_section_end|>"


def _minimax(*calls: tuple[str, dict[str, object]]) -> str:
    inside = "".join(
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{key}">{value}</parameter>\n' for key, value in values.items())
        + "</invoke>\n"
        for name, values in calls
    )
    return f"<minimax:tool_call>\n{inside}</minimax:tool_call>"


WRITINGS = {
    "qwen3_coder": Writing(
        family=Family("qwen3_coder", "qwen3"),
        marks=(),
        think=_THINK,
        one=_xml("get", a=1),
        two=_xml("get", a=1, t="é") + "\n" + _xml("put", t="x"),
        nonsense="<tool_call>\nnonsense\n</tool_call>",
    ),
    "deepseek_v3": Writing(
        family=Family("deepseek_v3", "deepseek_r1"),
        marks=_DEEPSEEK,
        think=_THINK,
        one=_v3(("get", '{"a": 1}')),
        two=_v3(("get", '{"a": 1, "t": "é"}'), ("put", '{"t": "x"}')),
        nonsense="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>nonsense<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": Writing(
        family=Family("deepseek_v31", "deepseek_v3"),
        marks=_DEEPSEEK,
        think="<think>hm</think>",
        one=_v31(("get", '{"a": 1}')),
        two=_v31(("get", '{"a": 1, "t": "é"}'), ("put", '{"t": "x"}')),
        nonsense="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>nonsense<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "mistral": Writing(
        family=Family("mistral", "mistral"),
        marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
        think="[THINK]hm[/THINK]",
        one='[TOOL_CALLS]get[ARGS]{"a": 1}',
        two='[TOOL_CALLS]get[ARGS]{"a": 1, "t": "é"}[TOOL_CALLS]put[ARGS]{"t": "x"}',
        nonsense="[TOOL_CALLS]nonsense",
    ),
    "glm45": Writing(
        family=Family("glm45", "glm45"),
        marks=(
            *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
            *("<think>", "</think>", "<|user|>", "<|assistant|>"),
        ),
        think="<think>hm</think>\n",
        one=_glm("get", a=1),
        two=_glm("get", a=1, t="é") + "\n" + _glm("put", t="x"),
        nonsense="<tool_call></tool_call>",
    ),
    "kimi_k2": Writing(
        family=Family("kimi_k2", "kimi_k2"),
        marks=(
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
            *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"),
        ),
        think="<think>hm</think>",
        one=_kimi(("get", '{"a": 1}')),
        two=_kimi(("get", '{"a": 1, "t": "é"}'), ("put", '{"t": "x"}')),
        nonsense="<|tool_calls_section_begin|>nonsense<|tool_calls_section_end|>",
    ),
    "minimax_m2": Writing(
        family=Family("minimax_m2", "minimax_m2"),
        marks=("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"),
        think=_THINK,
        one=_minimax(("get", {"a": 1})),
        two=_minimax(("get", {"a": 1, "t": "é"}), ("put", {"t": "x"})),
        nonsense="<minimax:tool_call>nonsense</minimax:tool_call>",
    ),
    "gemma4": Writing(
        family=Family("gemma4", "gemma4"),
        marks=("<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>", '<|"|>', "<|tool_response>"),
        think="<|channel>thought\nhm<channel|>",
        one="<|tool_call>call:get{a:1}<tool_call|>",
        two='<|tool_call>call:get{a:1,t:<|"|>é<|"|>}<tool_call|><|tool_call>call:put{t:<|"|>x<|"|>}<tool_call|>',
        nonsense="<|tool_call>nonsense<tool_call|>",
    ),
    "llama3_json": Writing(
        family=Family("llama3_json", None),
        marks=("<|python_tag|>",),
        think="",
        one='{"name": "get", "parameters": {"a": 1}}',
        two='<|python_tag|>{"name": "get", "parameters": {"a": 1, "t": "é"}}'
        '; {"name": "put", "parameters": {"t": "x"}}',
        nonsense='{"non": "sense"}',
    ),
}
# Calls of this one are the whole answer, without text before it.
ALONE = {"llama3_json"}
TALKATIVE = sorted(WRITINGS.keys() - ALONE)


class Case(NamedTuple):
    model: Model
    writing: Writing


@pytest.fixture(scope="session")
def models() -> dict[str, Model]:
    """Made once each."""
    return {}


@pytest.fixture
def case(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, models: dict[str, Model]
) -> Case:
    name, writing = request.param, WRITINGS[request.param]
    if name not in models:
        folder = tmp_path_factory.mktemp("model") / name
        models[name] = model_with(tiny_model, writing.family, marks=writing.marks, into=folder)
    return Case(models[name], writing)


EVERY = pytest.mark.parametrize("case", sorted(WRITINGS), indirect=True)
MOST = pytest.mark.parametrize("case", TALKATIVE, indirect=True)


@EVERY
def test_text_is_text(case: Case) -> None:
    assert case.model.blocks("Hé, so it is.") == [Text("Hé, so it is.")]


@EVERY
def test_calls_are_calls(case: Case) -> None:
    assert case.model.blocks(case.writing.one) == [call("get", a=1)]
    assert case.model.blocks(case.writing.two) == [call("get", a=1, t="é"), call("put", t="x")]


@MOST
def test_reasoning_text_and_calls_come_apart(case: Case) -> None:
    answer = case.writing.think + "I look." + case.writing.two
    assert case.model.blocks(answer) == [Thinking("hm"), Text("I look."), call("get", a=1, t="é"), call("put", t="x")]


@EVERY
def test_text_behind_a_call_is_not_lost(case: Case) -> None:
    blocks = case.model.blocks(case.writing.one + "\nDone.")
    assert blocks == [call("get", a=1), Text("Done.")]


@EVERY
def test_every_cut_of_a_call_is_that_call_or_all_of_its_text(case: Case) -> None:
    """Never a call with less in it than the model meant."""
    tokens = case.model.tokens(case.writing.one)
    for end in range(1, len(tokens)):
        said = without_ids(blocks_of(case.model.read(tokens[:end])))
        whole = [block for block in said if block == call("get", a=1)]
        text = "".join(block.text for block in said if isinstance(block, Text))
        source = case.writing.one[: len(text)]
        assert whole or text == source, (end, said)
        assert len(whole) == len([block for block in said if not isinstance(block, Text)])


@EVERY
def test_nonsense_between_marks_is_text(case: Case) -> None:
    events = case.model.read(case.writing.nonsense + "z")
    text = "".join(block.text for block in blocks_of(events) if isinstance(block, Text))
    assert text.endswith("z")
    assert case.writing.nonsense.strip("<>").split(">")[-1].split("<")[0].strip("{}") in text
    assert not [event for event in events if isinstance(event, CallBroken)]


@MOST
def test_without_tools_nothing_but_reasoning_is_taken_out(case: Case) -> None:
    blocks = case.model.blocks(case.writing.think + "So.", conversation=NO_TOOLS)
    assert blocks == [Thinking("hm"), Text("So.")]


@EVERY
def test_marks_of_turns_are_no_text(case: Case) -> None:
    assert case.model.blocks("So.<|im_start|>") == [Text("So.")]


@EVERY
def test_tokens_that_are_only_passed_on_can_be_read_together(case: Case) -> None:
    """Those that can wait end no call and change nothing but how many deltas there are; tokens are counted the same."""
    model, writing = case
    answer = (
        f"{_THINK if writing.think else ''}Some words, 1 < 2 of them. {writing.one}{writing.two} More words behind."
    )
    tokens = model.tokens(answer)
    one_by_one, together = assembly_of(model), assembly_of(model)
    ones: list[Event] = []
    groups: list[Event] = []
    waiting: list[TokenDelta] = []
    waited = 0
    for token in tokens:
        waits, before = one_by_one.waits(token), len(ones)
        waited += waits
        ones += one_by_one.push(TokenDelta(tokens=token)).events
        assert not waits or all(isinstance(event, TextDelta | ThinkingDelta) for event in ones[before:])
        waiting.append(TokenDelta(tokens=token))
        if not together.waits(token):
            groups += together.push_all(waiting).events
            waiting.clear()
    last = TokenDelta(tokens=b"", finish_reason="stop")
    ones += one_by_one.push(last).events
    groups += together.push_all([*waiting, last]).events
    assert (waited > 0) == (model.parsers._kind(writing.family).first_bytes is not None)  # else any text may be a call
    assert len(groups) <= len(ones)
    assert merged(groups) == merged(ones)
    assert together.usage == one_by_one.usage


def assembly_of(model: Model) -> Assembly:
    """Of an answer that may call."""
    prompt = b"".join(model.tokens(PROMPT))
    return Assembly(model.tokenizer, model.parsers.parser(OFFERED, prompt), stops=(), prompt_tokens=len(prompt) // 4)
