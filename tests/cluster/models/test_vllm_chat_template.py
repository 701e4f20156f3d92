"""Prompts of models without a chat template are written by vLLM's own code, to every ending."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from cluster.models import vllm_chat_template
from cluster.models.chat_template import JinjaChatTemplate
from cluster.models.served import fitted, template_of
from cluster.models.vllm_chat_template import VllmChatTemplate
from cluster.prompt.canonical import Canonicaliser, Rules
from cluster.prompt.conversation import ToolCall
from cluster.prompt.template import Ask, Turn, render
from router.errors import InvalidRequest, ModelUnusable
from tests.cluster.prompt.sessions import conversations_of

if TYPE_CHECKING:
    from pathlib import Path

TURN = Turn("user", "Who calls?")


def write_model(folder: Path, tiny_model: Path, architecture: str) -> Path:
    shutil.copy(tiny_model / "tokenizer.json", folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], "model_type": "x"}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    return write_model(tmp_path, tiny_model, "DeepseekV4ForCausalLM")


def test_every_ending_of_a_prompt_is_cut_from_what_vllm_writes(folder: Path) -> None:
    template = template_of(folder)
    assert isinstance(template, VllmChatTemplate)
    closed, opened = template.render([TURN], Ask("closed")), template.render([TURN], Ask())
    assert closed.endswith("Who calls?")
    assert opened.removeprefix(closed) == "<｜Assistant｜><think>"
    assert template.render([TURN], Ask(thinking="off")).endswith("<｜Assistant｜></think>")
    begun = [TURN, Turn("assistant", "Well, ")]
    assert template.render(begun, Ask("continue_last")).endswith("Well, ")
    assert template.render(begun, Ask()).endswith("<｜Assistant｜><think>")
    assert template.render(begun, Ask("closed")).endswith("Well, <｜end▁of▁sentence｜>")


def test_recorded_sessions_extend_in_vllms_words_too(folder: Path, shared: Path) -> None:
    template, rules = fitted(template_of(folder), Rules()), Canonicaliser(Rules())
    assert template.traits.supports_tools
    assert template.traits.keeps_thinking
    for session in ("cc_2.1.332_total_tokens", "cc_2.1.332_toolsearch_mcp"):
        for thread in conversations_of(shared, session):
            prompts = [render(rules.apply(request)[0], template, ending="closed") for request in thread]
            assert all(after.startswith(before) for before, after in pairwise(prompts))


def test_a_chat_template_of_the_model_itself_is_preferred(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert isinstance(template_of(folder), JinjaChatTemplate)


def test_a_model_that_nobody_writes_prompts_for_is_refused(folder: Path, tiny_model: Path) -> None:
    write_model(folder, tiny_model, "LlamaForCausalLM")
    with pytest.raises(ModelUnusable, match="has no chat template"):
        template_of(folder)


def test_without_vllm_such_a_model_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_chat_template, "find_spec", lambda name: None)
    with pytest.raises(ModelUnusable, match="vLLM writes its prompts, install it here"):
        template_of(folder)


def test_a_tokenizer_that_vllm_cannot_read_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelUnusable, match="vLLM cannot write prompts"):
        template_of(folder)


def test_turns_that_vllm_refuses_blame_the_request(folder: Path) -> None:
    broken = Turn("assistant", "", calls=(ToolCall("call_1", "read", "{broken"),))
    with pytest.raises(InvalidRequest, match="cannot be written"):
        template_of(folder).render([TURN, broken], Ask())
