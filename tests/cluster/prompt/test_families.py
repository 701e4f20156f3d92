"""Whatever a family's template refuses or drops: nothing is lost, and a later request extends the one before."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from cluster.models.chat_template import JinjaChatTemplate
from cluster.models.served import fitted
from cluster.prompt.canonical import Canonicaliser, Rules
from cluster.prompt.conversation import Text, Thinking, ToolCall, ToolResult
from cluster.prompt.fitting import nearest_effort
from cluster.prompt.template import render
from cluster.prompt.traits import EFFORTS, probe
from router.errors import ModelUnusable
from tests.cluster.prompt.conversations import PLOT, READ, conversation, tasks
from tests.cluster.prompt.families import CHATML, FAMILIES, GLM, Family, write_family

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cluster.prompt.conversation import Block, Conversation, Role
    from cluster.prompt.fitting import FittedTemplate
    from cluster.prompt.template import Ending

    Messages = list[tuple[Role, list[Block | str]]]

RULES = Canonicaliser(Rules())
by_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


@pytest.fixture(scope="module")
def templates(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, FittedTemplate]:
    folder = tmp_path_factory.mktemp("families")
    return {
        family.name: fitted(JinjaChatTemplate(write_family(family, folder / family.name, tiny_model)), Rules())
        for family in FAMILIES
    }


def prompt(request: Conversation, template: FittedTemplate, ending: Ending = "closed") -> str:
    return render(RULES.apply(request)[0], template, ending=ending)


@by_family
def test_what_a_template_can_do_is_found_out_by_asking(
    family: Family, templates: Mapping[str, FittedTemplate], tiny_model: Path, tmp_path: Path
) -> None:
    assert templates[family.name].traits == family.traits
    assert probe(JinjaChatTemplate(write_family(family, tmp_path, tiny_model))) == family.traits


def with_results() -> Conversation:
    """Every kind of block that is left when rules have run, and two calls at once."""
    first = ToolCall("toolu_01AbCdEfGhIjKlMnOp", "read", '{"p": "déjà"}')
    second = ToolCall("toolu_02AbCdEfGhIjKlMnOp", "read", '{"p": "naïf"}')
    results = [ToolResult(first.id, (Text("row one"),)), ToolResult(second.id, (Text("row é"),))]
    messages: Messages = [
        ("user", ["Who calls?"]),
        ("system", ["Hut, 80 percent."]),
        ("assistant", [Thinking("Look first."), "Reading both.", first, second]),
        ("user", [*results, "Be quick."]),
        ("system", ["Wind."]),
    ]
    return conversation(["Be brief."], messages, [READ, PLOT])


@by_family
def test_no_word_of_a_conversation_is_lost(family: Family, templates: Mapping[str, FittedTemplate]) -> None:
    text = prompt(with_results(), templates[family.name])
    for said in ("Be brief.", "Hut, 80 percent.", "Reads a file.", '"é"', "Reading both.", "déjà", "naïf"):
        assert said in text, said
    order = ["Who calls?", "déjà", "row one", "row é", "Be quick.", "<system-reminder>", "Wind.", "</system-reminder>"]
    at = 0
    for said in order:
        at = text.index(said, at) + len(said)
    assert "Draws a chart." not in text
    assert "\\u00e9" not in text
    assert ("Look first." in text) == (family.traits.keeps_thinking or family.name == "channels")


@by_family
@given(said=tasks)
@settings(deadline=None, max_examples=40)
def test_no_conversation_of_a_real_client_is_refused_and_each_request_extends_the_one_before(
    family: Family, templates: Mapping[str, FittedTemplate], said: list[Messages]
) -> None:
    messages = [message for task in said for message in task]
    if family.forgets_thoughts:
        messages = [(role, [b for b in blocks if not isinstance(b, Thinking)]) for role, blocks in messages]
    ends = [i for i, (role, _) in enumerate(messages) if role == "assistant"]
    prompts = [prompt(conversation(["Be brief."], messages[:end], [READ]), templates[family.name]) for end in ends]
    for before, after in pairwise(prompts):
        assert after.startswith(before)
        assert len(after) > len(before)


@by_family
def test_a_request_for_an_answer_is_the_closed_prompt_and_a_new_turn(
    family: Family, templates: Mapping[str, FittedTemplate]
) -> None:
    closed = prompt(with_results(), templates[family.name], "closed")
    assert prompt(with_results(), templates[family.name], "open_turn").startswith(closed)


@by_family
def test_an_answer_that_was_begun_is_continued(family: Family, templates: Mapping[str, FittedTemplate]) -> None:
    request = conversation(["Be brief."], [("user", ["Hi"]), ("assistant", ["Well, "])], [READ])
    assert render(request, templates[family.name]).rstrip().endswith("Well,")


@pytest.mark.parametrize("arguments", ["", "[1]", "{broken", '{"a": 1, "b": ['])
@by_family
def test_arguments_that_are_no_object_end_no_session(
    family: Family, templates: Mapping[str, FittedTemplate], arguments: str
) -> None:
    call = ToolCall("call_1", "read", arguments)
    request = conversation([], [("user", ["Hi"]), ("assistant", [call]), ("user", [ToolResult("call_1", ())])], [READ])
    assert "read" in prompt(request, templates[family.name])


def test_thinking_is_dropped_only_where_the_model_is_configured_so(tiny_model: Path, tmp_path: Path) -> None:
    request = conversation([], [("user", ["Hi"]), ("assistant", [Thinking("Hmm."), "Yes"]), ("user", ["And?"])])
    for family in (CHATML, GLM):
        template = JinjaChatTemplate(write_family(family, tmp_path / family.name, tiny_model))
        assert "Hmm." in render(request, fitted(template, Rules()))
    assert "Hmm." not in render(request, fitted(JinjaChatTemplate(tmp_path / "chatml"), Rules(keep_thinking=False)))


@pytest.mark.parametrize(
    ("asked", "taken"), [("high", "xhigh"), ("minimal", "low"), ("max", "xhigh"), ("medium", "medium"), ("9", "")]
)
def test_an_effort_that_a_template_does_not_take_is_the_nearest_one_that_it_does(asked: str, taken: str) -> None:
    assert nearest_effort(asked, CHATML.traits.efforts) == taken
    assert nearest_effort(asked, ()) == ""


def test_no_wish_for_effort_ends_a_session(templates: Mapping[str, FittedTemplate]) -> None:
    for effort in (*EFFORTS, "none", "</s>"):
        for template in templates.values():
            prompt(replace(with_results(), effort=effort), template)
    assert "Reasoning: high" in prompt(replace(with_results(), effort="max"), templates["channels"])


def test_a_template_that_drops_what_users_say_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    deaf = CHATML._replace(template="{{ messages | length }}")
    with pytest.raises(ModelUnusable, match="what a user says is not in the prompt"):
        fitted(JinjaChatTemplate(write_family(deaf, tmp_path, tiny_model)), Rules())


def test_native_system_messages_need_a_template_that_takes_them(tiny_model: Path, tmp_path: Path) -> None:
    native = Rules(inline_system="native")
    with pytest.raises(ModelUnusable, match=r"inline_system: native.*say user or merge"):
        fitted(JinjaChatTemplate(write_family(CHATML, tmp_path / "chatml", tiny_model)), native)
    template = fitted(JinjaChatTemplate(write_family(GLM, tmp_path / "glm", tiny_model)), native)
    request = conversation([], [("user", ["Hi"]), ("assistant", ["Yes"]), ("user", ["And?"]), ("system", ["Wind."])])
    canonical, _ = Canonicaliser(native).apply(request)
    assert "<|system|>\nWind." in render(canonical, template)


@by_family
def test_no_text_of_a_client_is_template_code(family: Family, templates: Mapping[str, FittedTemplate]) -> None:
    code = "{{ 7 * 191 }}{% raw %}{# note #}"
    request = conversation([code], [("user", [code]), ("assistant", [code]), ("user", [code])], [])
    assert prompt(request, templates[family.name]).count(code) == 4
