"""Demo models: prepared once, alike everywhere, with a chat template that keeps prefixes stable."""

from __future__ import annotations

import itertools
import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from workers.models import MARKS, TINY_CONFIG, prepare_smollm2, prepare_tiny, resolve_model

TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
    {"role": "user", "content": "Read a.py"},
    {
        "role": "assistant",
        "content": "Reading.",
        "reasoning_content": "I need the file.",
        "tool_calls": [
            {"type": "function", "function": {"name": "read", "arguments": {"path": "é.py"}}},
            {"type": "function", "function": {"name": "read", "arguments": '{"path": "b.py"}'}},
        ],
    },
    {"role": "tool", "content": "print(1)"},
    {"role": "tool", "content": "print(2)"},
    {"role": "system", "content": "90 tokens left"},
    {"role": "assistant", "content": "Two prints."},
    {"role": "user", "content": "Thanks"},
]
FIRST_TURN_END = 2
TURN_ENDS = (FIRST_TURN_END, 6, 8)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def render(folder: Path, messages: list[dict[str, Any]], **variables: Any) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return str(tokenizer.apply_chat_template(messages, tools=TOOLS, tokenize=False, **variables))


def test_two_caches_hold_the_same_bytes(cache: Path, tmp_path: Path) -> None:
    """Replicas on different machines must agree on tokens and weights."""
    one, other = prepare_tiny(cache, template="system-first"), prepare_tiny(tmp_path, template="system-first")
    assert one.name == other.name
    names = sorted(file.name for file in one.iterdir())
    assert names == sorted(file.name for file in other.iterdir())
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def _prepare(folder: str) -> str:
    return prepare_tiny(Path(folder), template="tools-first").name


def test_concurrent_callers_make_one_whole_folder(tmp_path: Path) -> None:
    """Two replicas that start together on one node share the work and the result."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        names = pool.map(_prepare, [str(tmp_path)] * 4)
    assert len(set(names)) == 1
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == [names[0]]


def test_a_failed_preparation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-written folder must never look like a model."""
    monkeypatch.setitem(TINY_CONFIG, "num_hidden_layers", "two")
    with pytest.raises(TypeError):
        prepare_tiny(tmp_path, template="system-first")
    assert [entry for entry in tmp_path.iterdir() if entry.is_dir()] == []


def test_every_token_has_a_row_in_the_embedding(cache: Path) -> None:
    folder = prepare_tiny(cache, template="system-first")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == json.loads((folder / "config.json").read_text())["vocab_size"] == 4096
    assert all(len(tokenizer.encode(mark)) == 1 for mark in MARKS)
    text = "def naïve(x):\n\treturn '日本' + x  # 😀"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("layout", ["system-first", "tools-first"])
def test_each_turn_extends_the_one_before(cache: Path, layout: Any) -> None:
    """Thinking, tool calls, tool results and late system messages stay where and as they were."""
    folder = prepare_tiny(cache, template=layout)
    rendered = [render(folder, CONVERSATION[:end]) for end in TURN_ENDS]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(rendered))
    prompt = render(folder, CONVERSATION[:FIRST_TURN_END], add_generation_prompt=True)
    assert prompt == rendered[0] + "<|im_start|>assistant\n"


def test_turns_render_as_chatml_with_tool_marks(cache: Path) -> None:
    text = render(prepare_tiny(cache, template="system-first"), CONVERSATION)
    assert (
        "<|im_start|>assistant\n<think>\nI need the file.\n</think>\n\nReading.\n"
        '<tool_call>\n{"name": "read", "arguments": {"path": "é.py"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "read", "arguments": {"path": "b.py"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nprint(1)\n</tool_response>\n<tool_response>\nprint(2)\n</tool_response>"
        "<|im_end|>\n<|im_start|>system\n90 tokens left<|im_end|>\n"
    ) in text


def test_layouts_differ_in_what_comes_first(cache: Path) -> None:
    system_first = render(prepare_tiny(cache, template="system-first"), CONVERSATION)
    tools_first = render(prepare_tiny(cache, template="tools-first"), CONVERSATION)
    assert system_first.index("Be brief.") < system_first.index("</tools>")
    assert tools_first.index("Be brief.") > tools_first.index("</tools>")


def test_thinking_before_the_last_question_goes_only_when_asked(cache: Path) -> None:
    folder = prepare_tiny(cache, template="system-first")
    assert "I need the file." not in render(folder, CONVERSATION, preserve_thinking=False)
    assert "I need the file." in render(folder, CONVERSATION[:6], preserve_thinking=False)
    silent = render(folder, CONVERSATION[:2], add_generation_prompt=True, enable_thinking=False)
    assert silent.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_names_and_paths_resolve(cache: Path, tmp_path: Path) -> None:
    tiny = resolve_model("tiny", cache)
    assert tiny == prepare_tiny(cache, template="system-first")
    assert resolve_model(str(tiny), tmp_path) == tiny
    assert str(resolve_model("org/model-7b", tmp_path)) == "org/model-7b"
    with pytest.raises(FileNotFoundError, match="no model at"):
        resolve_model(str(tmp_path), cache)


def test_smollm2_says_what_to_install_when_its_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.models._SMOLLM2_PACKAGE", "no-such-package")
    with pytest.raises(FileNotFoundError, match="kvist\\[demo\\]"):
        prepare_smollm2(tmp_path)


def test_smollm2_answers_a_question(tmp_path: Path) -> None:
    """The dequantised weights are the model's, not noise."""
    from transformers import AutoModelForCausalLM

    folder = resolve_model("smollm2", tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
