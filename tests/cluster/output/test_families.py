"""Which parsers read which model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cluster.models.chat_template import JinjaChatTemplate
from cluster.output.families import AUTOMATIC, Family, call_marks, family_of, named_parsers, settled

if TYPE_CHECKING:
    from pathlib import Path

HERMES = '{{ tools }}<tool_call>{"name": .., "arguments": ..}</tool_call>'
XML = "<tool_call><function=f><parameter=p></tool_call>"
THINKS = "<think>{{ reasoning }}</think>"


@pytest.mark.parametrize(
    ("kind", "template", "family"),
    [
        ("llama", "<|im_start|>{{ message.content }}<|im_end|>", Family(None, None)),
        ("qwen2", HERMES, Family("hermes", None)),
        ("qwen3", HERMES + THINKS, Family("hermes", "qwen3")),
        ("qwen3_moe", XML, Family("qwen3_coder", None)),
        ("qwen3_5", XML + THINKS, Family("qwen3_coder", "qwen3")),
        ("nemotron_h", XML + THINKS, Family("qwen3_coder", "nemotron_v3")),
        ("step3p5", XML + THINKS, Family("step3p5", "step3p5")),
        ("mimo_v2_flash", XML + THINKS, Family("mimo", "mimo")),
        ("seed_oss", "<seed:tool_call><function=f><parameter=p><seed:think>", Family("seed_oss", "seed_oss")),
        ("deepseek_v3", "<｜Assistant｜><｜tool▁call▁begin｜>f\n```json\n", Family("deepseek_v3", None)),
        (
            "deepseek_v3",
            "<｜Assistant｜><｜tool▁call▁begin｜>\n```json\n</think>",
            Family("deepseek_v3", "deepseek_r1"),
        ),
        ("deepseek_v3", "{% if thinking %}<｜tool▁call▁begin｜></think>", Family("deepseek_v31", "deepseek_v3")),
        ("qwen2", "<｜Assistant｜></think>", Family(None, "deepseek_r1")),
        ("deepseek_v32", "", Family("deepseek_v32", "deepseek_v3")),
        ("deepseek_v4", "", Family("deepseek_v4", "deepseek_v4")),
        ("glm4_moe", "<tool_call>{{ name }}<arg_key>" + THINKS, Family("glm45", "glm45")),
        ("glm4_moe_lite", "<tool_call>{{ name }}<arg_key>" + THINKS, Family("glm47", "glm47")),
        ("kimi_k25", "<|tool_calls_section_begin|>" + THINKS, Family("kimi_k2", "kimi_k2")),
        ("deepseek_v3", "<|tool_calls_section_begin|>", Family("kimi_k2", None)),
        ("minimax_m2", "<minimax:tool_call>" + THINKS, Family("minimax_m2", "minimax_m2")),
        ("mistral3", "[TOOL_CALLS]", Family("mistral", None)),
        ("ministral3", "[TOOL_CALLS][THINK]", Family("mistral", "mistral")),
        ("llama", '<|python_tag|>{"name": .., "parameters": ..}', Family("llama3_json", None)),
        ("llama4", 'ipython "parameters": ', Family("llama4_pythonic", None)),
        ("gpt_oss", "<|channel|>", Family("openai", "openai_gptoss")),
        ("gemma4", "<|tool_call>call:<|channel>", Family("gemma4", "gemma4")),
        ("granitemoehybrid", "<tool_call>", Family("granite4", None)),
        ("granite", "<|tool_call|> Here is my thought process:", Family("granite", "granite")),
        ("phi3", "<|tool_call|>", Family("phi4_mini_json", None)),
    ],
)
def test_a_model_is_read_by_the_marks_of_its_template_and_by_its_type(kind: str, template: str, family: Family) -> None:
    assert family_of({"model_type": kind}, template) == family


def test_a_config_without_a_type_is_no_failure() -> None:
    assert family_of({}, "") == family_of({"model_type": 7}, "") == Family(None, None)
    assert family_of({"text_config": {"model_type": "gpt_oss"}}, "").tool_parser == "openai"


def test_the_demo_model_thinks_and_calls(tiny_model: Path) -> None:
    config = json.loads((tiny_model / "config.json").read_text(encoding="utf-8"))
    assert family_of(config, JinjaChatTemplate(tiny_model).source) == Family("hermes", "qwen3")


def test_an_operators_word_goes_before_what_is_found() -> None:
    found = Family("hermes", "qwen3")
    assert settled(AUTOMATIC, found) == found
    assert settled(Family("none", "auto"), found) == Family(None, "qwen3")
    assert settled(Family("glm45", "none"), found) == Family("glm45", None)


def test_every_parser_of_the_tables_exists() -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    tools, reasoning = named_parsers()
    assert tools is not None
    assert reasoning is not None
    assert set(tools.split()) <= set(ToolParserManager.list_registered())
    assert set(reasoning.split()) <= set(ReasoningParserManager.list_registered())


def test_marks_are_known_for_what_agents_are_served_with() -> None:
    for parser in ("hermes", "qwen3_coder", "deepseek_v31", "glm45", "kimi_k2", "minimax_m2"):
        marks = call_marks(parser)
        assert marks is not None
        assert marks.close
    assert call_marks("openai") is None
    assert call_marks(None) is None
