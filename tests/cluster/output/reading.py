"""Answers of model families, read token by token as the ingress reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from tokenizers import AddedToken, Tokenizer

from cluster.models.output_parser import ParserFamily
from cluster.models.tokenizer import HfTokenizer
from cluster.output.detokenizer import Detokenizer
from cluster.output.events import CallStart, TextDelta, ThinkingDelta, blocks_of
from cluster.prompt.conversation import Conversation, Text, Thinking, Tool, ToolCall, ToolChoice

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from cluster.output.events import Event, Said
    from cluster.output.families import Family

PROMPT = "<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
GET = Tool(
    name="get",
    parameters=json.dumps({"type": "object", "properties": {"a": {"type": "integer"}, "t": {"type": "string"}}}),
)
PUT = Tool(name="put", parameters='{"type": "object", "properties": {"t": {"type": "string"}}}')
OFFERED = Conversation(api="messages", model="tiny", tools=(GET, PUT))
FORBIDDEN = msgspec.structs.replace(OFFERED, tool_choice=ToolChoice(mode="none"))
NO_TOOLS = msgspec.structs.replace(OFFERED, tools=())


class Model(NamedTuple):
    """A tokenizer, and the parsers over it."""

    tokenizer: HfTokenizer
    parsers: ParserFamily

    def tokens(self, text: str) -> list[bytes]:
        """One by one."""
        packed = self.tokenizer.encode_batch([text])[0]
        return [packed[at : at + 4] for at in range(0, len(packed), 4)]

    def read(
        self, answer: str | Iterable[bytes], *, prompt: str = PROMPT, conversation: Conversation = OFFERED
    ) -> list[Event]:
        """All events of one answer, a text or tokens."""
        parser = self.parsers.parser(conversation, b"".join(self.tokens(prompt)))
        detokenizer = Detokenizer(self.tokenizer)
        events: list[Event] = []
        for token in self.tokens(answer) if isinstance(answer, str) else answer:
            events += parser.push(detokenizer.push(token), int.from_bytes(token, "little"))
        return [*events, *parser.finish(detokenizer.finish())]

    def blocks(
        self, answer: str | Iterable[bytes], *, prompt: str = PROMPT, conversation: Conversation = OFFERED
    ) -> list[Said]:
        """What the answer adds up to, ids of calls left out."""
        return without_ids(blocks_of(self.read(answer, prompt=prompt, conversation=conversation)))


def model_with(folder: Path, family: Family, *, marks: Sequence[str] = (), into: Path | None = None) -> Model:
    """The tokenizer of `folder`, with marks as special tokens of their own."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if into is not None:
        tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
        into.mkdir()
        tokenizer.save(str(into / "tokenizer.json"))
        folder = into
    hf = HfTokenizer(folder)
    return Model(hf, ParserFamily(folder, family, hf.specials()))


def call(name: str, **arguments: object) -> ToolCall:
    """A call without an id, as `without_ids` leaves it."""
    return ToolCall("", name, json.dumps(arguments, ensure_ascii=False))


def without_ids(blocks: Iterable[Said]) -> list[Said]:
    """Blocks as they compare: ids of calls are random, and parsers write their arguments as they like."""
    return [_plain(block) for block in blocks]


def merged(events: Iterable[Event]) -> list[Event]:
    """Events as they compare: deltas of one kind joined, ids left out."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, TextDelta | ThinkingDelta) and type(event) is type(last):
            joined[-1] = type(event)(last.text + event.text)
        else:
            joined.append(CallStart("", event.name) if isinstance(event, CallStart) else event)
    return joined


def _plain(block: Said) -> Said:
    if not isinstance(block, ToolCall):
        return block
    return ToolCall("", block.name, json.dumps(json.loads(block.arguments), ensure_ascii=False))


def text(words: str) -> Text:
    """Short for tests."""
    return Text(words)


def thought(words: str) -> Thinking:
    """Short for tests."""
    return Thinking(words)
