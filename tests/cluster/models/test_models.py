"""Tokenizer and chat template out of model folders."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from cluster.models.chat_template import JinjaChatTemplate
from cluster.models.served import load_model
from cluster.models.tokenizer import HfTokenizer
from cluster.prompt.canonical import Rules
from cluster.prompt.conversation import (
    Block,
    Conversation,
    Message,
    Role,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolReference,
    ToolResult,
)
from cluster.prompt.template import Ask, Turn
from router.errors import InvalidRequest, ModelUnusable, RequestTooLarge
from router.limits import INLINE_BODY_BYTES, INLINE_PROMPT_CHARS
from tests.cluster.support import packed

if TYPE_CHECKING:
    from pathlib import Path

USER = Turn("user", "Hi")


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the demo model's small files, to be spoilt."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tiny_model / name, tmp_path / name)
    return tmp_path


def configure(folder: Path, **settings: Any) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_a_turn_is_opened_or_the_last_one_continued(tiny_model: Path) -> None:
    template = JinjaChatTemplate(tiny_model)
    opened = template.render([USER], Ask())
    assert opened == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render([USER, Turn("assistant", "Yes, ")], Ask("continue_last")) == f"{opened}Yes, "


def test_templates_in_the_settings_know_the_special_tokens(folder: Path) -> None:
    source = "{{ bos_token }}{{ eos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    configure(folder, chat_template=source, bos_token="<s>", eos_token={"content": "</s>"}, unk_token=None)
    assert JinjaChatTemplate(folder).render([USER], Ask()) == "<s></s>Hi"
    configure(folder, chat_template=[{"name": "rag", "template": "x"}, {"name": "default", "template": "y"}])
    assert JinjaChatTemplate(folder).render([USER], Ask()) == "y"


@pytest.mark.parametrize(
    "settings", [{}, {"chat_template": [{"name": "rag", "template": "x"}]}, {"chat_template": "{{ unclosed"}]
)
def test_a_folder_without_a_usable_template_is_refused(folder: Path, settings: dict[str, Any]) -> None:
    configure(folder, **settings)
    with pytest.raises(ModelUnusable, match="chat template"):
        JinjaChatTemplate(folder)


def test_unreadable_settings_are_refused(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelUnusable, match="cannot be read"):
        JinjaChatTemplate(folder)


def test_a_template_that_refuses_turns_blames_the_request(folder: Path) -> None:
    configure(folder, chat_template="{% if messages | length > 1 %}{{ raise_exception('one turn only') }}{% endif %}x")
    with pytest.raises(InvalidRequest, match="one turn only"):
        JinjaChatTemplate(folder).render([USER, USER], Ask())


def test_a_template_cannot_leave_its_sandbox(folder: Path) -> None:
    configure(folder, chat_template="{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ModelUnusable):
        JinjaChatTemplate(folder)


def test_a_folder_without_a_usable_tokenizer_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelUnusable, match="cannot be read"):
        HfTokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelUnusable, match=r"has no tokenizer\.json"):
        HfTokenizer(folder)


def sentencepiece_like() -> Tokenizer:
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "▁a": 3, "<0xE9>": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.add_tokens(["<call>"])
    return tokenizer


def test_word_marks_and_byte_tokens_become_text(folder: Path) -> None:
    sentencepiece_like().save(str(folder / "tokenizer.json"))
    tokenizer = HfTokenizer(folder)
    assert tokenizer.bytes_of(packed([3, 1, 2, 4, 5, 6])) == b" a a\xe9<call>"


def test_a_tokenizer_that_marks_only_the_start_of_a_prompt_is_never_cut(folder: Path) -> None:
    marking = sentencepiece_like()
    marking.normalizer = None
    marking.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    marking.save(str(folder / "tokenizer.json"))
    tokenizer = HfTokenizer(folder)
    assert tokenizer.encode_batch(["a<s>a"]) == [packed([3, 5, 2])]
    assert tokenizer.atoms() == {}


def test_an_unknown_decoder_is_refused(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(ModelUnusable, match="WordPiece"):
        HfTokenizer(folder)


def test_a_flood_of_atoms_is_cut_and_joined_off_the_loop(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(tiny_model, name="tiny", max_model_len=64, rules=Rules())
    segmenter = model._segmenter
    atom, token = next(iter(segmenter._atoms.items()))
    threads: list[threading.Thread] = []
    cut = segmenter.cut

    def noting_where(prompt: str) -> Any:
        threads.append(threading.current_thread())
        return cut(prompt)

    monkeypatch.setattr(segmenter, "cut", noting_where)
    count = INLINE_BODY_BYTES // len(atom) + 1
    assert asyncio.run(model.tokens(atom * count)) == token * count
    assert asyncio.run(model.tokens(atom)) == token
    assert [thread is threading.main_thread() for thread in threads] == [False, True]


@pytest.mark.parametrize("text", ["short", "word " * INLINE_PROMPT_CHARS])
def test_long_prompts_are_rendered_and_encoded_off_the_loop(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    model = load_model(tiny_model, name="tiny", max_model_len=64, rules=Rules())
    encoder: Any = model._segmenter._encoder
    threads: list[threading.Thread] = []
    encode = encoder.encode_batch

    def noting_where(texts: list[str]) -> Any:
        threads.append(threading.current_thread())
        return encode(texts)

    monkeypatch.setattr(encoder, "encode_batch", noting_where)

    async def tokens() -> bytes:
        conversation = Conversation(api="chat", model="tiny", messages=(Message("user", (Text(text),)),))
        return await model.tokens(await model.prompt(conversation))

    whole = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    prompt = JinjaChatTemplate(tiny_model).render([Turn("user", text)], Ask())
    assert asyncio.run(tokens()) == packed(whole.encode(prompt, add_special_tokens=False).ids)
    assert (threads == [threading.main_thread()]) == (text == "short")
    assert repr(model) == "ServedModel(tiny, 64 tokens)"


@pytest.mark.parametrize(
    "block",
    [
        Text("x" * 100),
        Thinking("x" * 100),
        ToolCall("call_1", "read", f'{{"p": "{"x" * 100}"}}'),
        ToolResult("call_1", (Text("x" * 100),)),
        ToolReference("long"),
    ],
    ids=lambda block: type(block).__name__,
)
def test_a_flood_in_any_kind_of_block_is_refused_unrendered(tiny_model: Path, block: Block) -> None:
    model = load_model(tiny_model, name="tiny", max_model_len=1, rules=Rules())
    role: Role = "assistant" if isinstance(block, Thinking | ToolCall) else "user"
    long = Tool(name="long", description="x" * 100, deferred=True)
    few = Conversation(api="chat", model="tiny", messages=(Message(role, (Text("x"),)),), tools=(long,))
    assert model.canonical(few).conversation.messages == few.messages
    with pytest.raises(RequestTooLarge, match="cannot fit the context window of 1 tokens"):
        model.canonical(replace(few, messages=(Message(role, (block,)),)))
    with pytest.raises(RequestTooLarge):
        model.canonical(replace(few, tools=(replace(long, deferred=False),)))


def test_a_model_whose_template_knows_no_tools_is_told_of_them_and_read_by_their_tags(folder: Path) -> None:
    configure(
        folder, chat_template="{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<｜tool▁call▁begin｜>"
    )
    (folder / "config.json").write_text("{}")
    model = load_model(folder, name="m", max_model_len=64, rules=Rules())
    conversation = Conversation(
        api="chat",
        model="m",
        messages=(Message("user", (Text("Hi"),)),),
        tools=(Tool(name="read", description="Reads."),),
    )
    assert '<tools>\n{"type": "function", "function": {"name": "read"' in asyncio.run(model.prompt(conversation))
    assert model._parsers is not None
    assert model._parsers.names.tool_parser == "hermes"
