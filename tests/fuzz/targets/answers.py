"""Answers of any tokens, read by a family's own parsers: well-formed events come out, and every word."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from cluster.models.output_parser import ParserFamily
from cluster.models.tokenizer import HfTokenizer
from cluster.output.assembly import Assembly
from cluster.output.events import CallArguments, CallStart, TextDelta, ThinkingDelta, blocks_of
from cluster.output.families import Family
from cluster.prompt.conversation import Conversation, Tool, ToolCall
from tests.fuzz.draw import Draw
from workers.engine import TokenDelta

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cluster.output.events import Event

MARKS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>")
WORDS: Final = (
    "<", "tool_call>", "/", "\n", " ", "é", "w", "{", "}", '"', ",", ":", "1", "\\",
    '{"name": "get", "arguments": ', '{"name": "', '"arguments"', '{"a": "w', '"}}',
    "<function=get>", "<parameter=a>", "</parameter>", "</function>",
)  # fmt: skip
TEXTS: Final = (*MARKS, *WORDS)
OFFERED: Final = Conversation(api="chat", model="m", tools=(Tool(name="get"),))
PROMPTS: Final = ("\n", "<think>", "</think>")


def _prepared() -> tuple[HfTokenizer, tuple[ParserFamily, ...]]:
    """A byte-level vocabulary with every text as one token; imports what takes long, before an input is timed."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in TEXTS if text != MARKS[-1]])
    tokenizer.add_special_tokens([AddedToken(MARKS[-1], normalized=False)])
    with TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(str(folder / "tokenizer.json"))
        found = HfTokenizer(folder)
        pairs = (Family("hermes", "qwen3"), Family("qwen3_coder", "qwen3"))
        families = tuple(ParserFamily(folder, family, found.specials()) for family in pairs)
        for family in families:
            family.warm()
    return found, families


TOKENIZER, FAMILIES = _prepared()


def run(data: bytes) -> None:
    draw = Draw(data)
    family, prompt = draw.one_of(FAMILIES), draw.one_of(PROMPTS)
    answer = "".join([TEXTS[byte % len(TEXTS)] for byte in draw.rest()[:80]])
    packed = TOKENIZER.encode_batch([answer])[0]
    tokens = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    one_by_one = _read(family, prompt, tokens)
    _check_form(one_by_one)
    assert _told(_read(family, prompt, [packed])) == _told(one_by_one)
    said = "".join(event.text for event in one_by_one if isinstance(event, TextDelta | ThinkingDelta | CallArguments))
    assert said.count("é") >= _spoken(answer).count("é"), (answer, one_by_one)


def seeds() -> Iterator[bytes]:
    call = bytes(map(TEXTS.index, ("<tool_call>", '{"name": "get", "arguments": ', '{"a": "w', '"}}')))
    end = bytes(map(TEXTS.index, ("</tool_call>", "\n")))
    thought = bytes(map(TEXTS.index, ("<think>", "é", "</think>", "\n", "w")))
    xml = ("<tool_call>", "<function=get>", "<parameter=a>", "1", "</parameter>", "</function>")
    tag = bytes(map(TEXTS.index, xml))
    for prompt in range(len(PROMPTS)):
        yield bytes((0, prompt)) + thought + call + end + call + end + thought + call[:-1] + end + call + thought
        yield bytes((1, prompt)) + thought + tag + end + thought + tag[:-1] + end + tag + tag


def recorded(fixtures: Path) -> Iterator[bytes]:
    """Nobody else records answers over this vocabulary."""
    yield from ()


def _read(family: ParserFamily, prompt: str, groups: Sequence[bytes]) -> list[Event]:
    parser = family.parser(OFFERED, TOKENIZER.encode_batch([prompt])[0])
    assembly = Assembly(TOKENIZER, parser, stops=(), prompt_tokens=1)
    deltas = [*(TokenDelta(tokens=group) for group in groups), TokenDelta(finish_reason="stop")]
    return list(assembly.push_all(deltas).events)


def _told(events: list[Event]) -> list[object]:
    return [(type(block), block.name, block.arguments) if isinstance(block, ToolCall) else block
            for block in blocks_of(events)]  # fmt: skip


def _check_form(events: list[Event]) -> None:
    running = False
    for event in events:
        assert running != isinstance(event, CallStart | TextDelta | ThinkingDelta)
        running = isinstance(event, CallStart | CallArguments)
    assert not running
    for block in blocks_of(events):
        assert not isinstance(block, ToolCall) or isinstance(json.loads(block.arguments), dict)


def _spoken(answer: str) -> str:
    """What stands outside of anything that could be a call."""
    return answer.partition("<tool_call>")[0].partition("<function=get>")[0]
