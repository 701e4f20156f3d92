"""Reasoning and calls in generated text, read by vLLM's parsers: the one place that calls them.

They are imported with the first parser that is made or by `ParserFamily.warm`, whichever comes first, because that
takes seconds and half a gigabyte.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from array import array
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from cluster.models.parser_request import chat_request, form_request
from cluster.output.families import AUTOMATIC, Family, call_marks, family_of, settled
from cluster.output.narrator import CallPiece, Narrator, Parsed
from router.errors import ModelUnusable
from router.hashing import BYTES_PER_TOKEN
from workers.engine import Structured
from workers.vllm_engine import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from cluster.output.events import Event
    from cluster.prompt.conversation import Conversation

logger = logging.getLogger("ray.serve")

_TAIL_TOKENS: Final = 64  # of the prompt, in which a parser may look for the beginning of reasoning
_HARMONY: Final = frozenset({"openai", "openai_gptoss"})
_THINKING: Final = {"enable_thinking": True, "thinking": True}


def parsers_of(folder: Path, wanted: Family, *, template: str, specials: Mapping[int, str]) -> ParserFamily | None:
    """The parsers of a model by its folder, template and what its operator said; None where all is text.

    Raises `ModelUnusable` when the operator named a parser and vLLM is not installed here.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    family = settled(wanted, family_of(config, template))
    if not any(family):
        return None
    if find_spec("vllm") is None:
        if wanted != AUTOMATIC:
            raise ModelUnusable("tool_parser and reasoning_parser need vLLM where the ingress runs: install it")
        logger.warning("vLLM is not installed here: calls and reasoning of %s are served as text", folder.name)
        return None
    return ParserFamily(folder, family, specials)


class ParserFamily:
    """The parsers of one model. Made at load, cheaply; safe to use from threads."""

    def __init__(self, folder: Path, family: Family, specials: Mapping[int, str]) -> None:
        """`specials` are the texts of the model's special tokens."""
        self.names = family
        self._folder = folder
        self._specials = specials
        self._lock = Lock()
        self._tokenizer: Any = None
        self._kinds: dict[Family, _Kind] = {}

    def warm(self) -> None:
        """Import what requests will need, and check it. Takes seconds: call it in a thread. Raises `ModelUnusable`."""
        self._kind(self.names)

    def parser(self, conversation: Conversation, prompt: bytes) -> VllmParser:
        """What reads one answer to `prompt` (packed u32), which this conversation was rendered to."""
        calls = bool(conversation.tools) and conversation.tool_choice.mode != "none"
        kind = self._kind(self.names if calls else self.names._replace(tool_parser=None))
        return VllmParser(kind, chat_request(conversation, calls=calls), prompt)

    def form_of_calls(self, conversation: Conversation) -> Structured | None:
        """The form that this family's calls must have by the client's choice; None where none can be asked for."""
        if self.names.tool_parser is None:
            return None
        request = form_request(conversation)
        asked = self._kind(self.names).strict(request).adjust_request(request).structured_outputs
        if asked is not None and asked.structural_tag is not None:
            return Structured(kind="structural_tag", spec=asked.structural_tag)
        return None if asked is None or asked.json is None else Structured(kind="json", spec=json.dumps(asked.json))

    def begun_reasoning(self, prompt: bytes) -> str:
        """The mark that ends the reasoning which this prompt has begun; "" if it has begun none."""
        kind = self._kind(self.names)
        return kind.think_end if kind.think_start and kind.tail_of(_tail(prompt)).endswith(kind.think_start) else ""

    def _kind(self, family: Family) -> _Kind:
        with self._lock:
            if family not in self._kinds:
                try:
                    if self._tokenizer is None:
                        self._tokenizer = _tokenizer(self._folder)
                    self._kinds[family] = _Kind(family, self._tokenizer, self._specials)
                except Exception as fault:
                    names = " and ".join(name for name in family if name)
                    raise ModelUnusable(f"the parsers {names} do not fit {self._folder}: {fault}") from fault
            return self._kinds[family]


class _Kind:
    """One pair of parsers over one tokenizer, and the texts that they take away."""

    def __init__(self, family: Family, tokenizer: Any, specials: Mapping[int, str]) -> None:
        self._tokenizer = tokenizer
        self._combined = _parser_class(family)
        self._calls_only = _parser_class(family._replace(reasoning_parser=None))
        self._strict = _parser_class(family._replace(reasoning_parser=None), strict_level="function")
        self.has_reasoning = family.reasoning_parser is not None
        self.marks = call_marks(family.tool_parser)
        reasoning = self._trial(self._combined).reasoning_parser if self.has_reasoning else None
        self.think_start = str(getattr(reasoning, "reasoning_start_str", None) or "")
        self.think_end = str(getattr(reasoning, "reasoning_end_str", None) or "")
        texts = {self.think_start, self.think_end}
        if self.marks is not None:
            texts |= {*self.marks.opens, self.marks.close}
        for cls in (self._combined, self._calls_only):
            texts |= set(_texts_of(self._trial(cls))) if cls is not None else set()
        self.specials = {token: text for token, text in specials.items() if text in texts}
        self.framing = tuple({self.think_start, self.think_end, *self.specials.values()} - {""})
        self._ids = {text: token for token, text in specials.items()} | dict(tokenizer.get_added_vocab())

    def new(self, request: Any, *, thinking: bool) -> Any:
        """A parser for the beginning of an answer, with reasoning in it or without; None where all is text."""
        cls = self._combined if thinking else self._calls_only
        wishes = dict(_THINKING) if thinking else {}
        return None if cls is None else cls(self._tokenizer, request.tools, chat_template_kwargs=wishes)

    def strict(self, request: Any) -> Any:
        """A parser that asks for a form wherever its family's calls have one that an engine can be held to."""
        return self._strict(self._tokenizer, request.tools)

    def tail_of(self, prompt: Sequence[int]) -> str:
        """The text of a prompt's last tokens, without white space at the end."""
        return str(self._tokenizer.decode(prompt, skip_special_tokens=False)).rstrip()

    def tokens_of(self, mark: str) -> list[int]:
        """The token that is this mark, if one is."""
        return [self._ids[mark]] if mark in self._ids else []

    def _trial(self, cls: Any) -> Any:
        return cls(self._tokenizer, chat_template_kwargs=dict(_THINKING))


class VllmParser:
    """An `OutputParser` over vLLM's parsers, which are fed one token at a time.

    Whether an answer begins with reasoning is decided here, once: its prompt ends in the mark that opens it, or the
    answer begins with that mark. A parser that fails is not asked again: what it had not said, and the rest, is text.
    """

    def __init__(self, kind: _Kind, request: Any, prompt: bytes) -> None:
        self._kind = kind
        self._request = request
        self._narrator = Narrator(kind.marks, kind.framing)
        self._parser: Any = None
        self._prompt: list[int] | None = []
        self._waiting: list[tuple[str, int]] | None = None  # until it is known whether the answer begins with reasoning
        self._opened = False
        self._failed = False
        tail = _tail(prompt)
        if not kind.think_start:
            self._begin(thinking=kind.has_reasoning)
        elif kind.tail_of(tail).endswith(kind.think_start):
            self._opened, self._prompt = True, tail
            self._begin(thinking=True)
            self._feed(kind.think_start, kind.tokens_of(kind.think_start))
        else:
            self._waiting = []

    @property
    def is_thinking(self) -> bool:
        """See `OutputParser`."""
        return self._opened or self._narrator.is_thinking

    def push(self, text: str, token: int) -> Sequence[Event]:
        """See `OutputParser`."""
        text += self._kind.specials.get(token, "")
        if not text:
            return ()
        if self._waiting is None:
            return self._feed(text, [token])
        self._waiting.append((text, token))
        begun, mark = "".join(text for text, _ in self._waiting).lstrip(), self._kind.think_start
        if len(begun) < len(mark) and mark.startswith(begun):
            return ()
        return self._decide(thinking=begun.startswith(mark))

    def finish(self, text: str) -> Sequence[Event]:
        """See `OutputParser`."""
        events: list[Event] = []
        if self._waiting is not None:
            events += self._decide(thinking=False)
        if self._failed:
            events += self._narrator.say(text)
        else:
            events += self._fed(text, [], finished=True)
        return events + self._narrator.finish()

    def _decide(self, *, thinking: bool) -> list[Event]:
        waited, self._waiting = self._waiting or [], None
        self._begin(thinking=thinking)
        return [event for text, token in waited for event in self._feed(text, [token])]

    def _begin(self, *, thinking: bool) -> None:
        self._parser = self._kind.new(self._request, thinking=thinking)

    def _begin_again(self) -> None:
        """A parser for what follows a region of calls: families' own differ in whether they read any further."""
        self._prompt = []
        self._begin(thinking=False)

    def _feed(self, text: str, tokens: list[int]) -> list[Event]:
        events: list[Event] = []
        while text:
            if self._failed:
                return events + self._narrator.say(text)
            end = self._narrator.cut(text)
            part, text = (text[:end], text[end:]) if end else (text, "")
            events += self._fed(part, tokens)
            tokens = []
            if end:
                events += self._narrator.end_region()
                self._begin_again()
            elif begun := self._narrator.reopened():
                self._begin_again()
                events += self._fed(begun, [], is_held=True)
        self._opened &= not events
        return events

    def _fed(self, text: str, tokens: list[int], *, is_held: bool = False, finished: bool = False) -> list[Event]:
        news = "" if is_held else text
        try:
            parsed = self._parse(text, tokens, finished=finished)
        except Exception:
            logger.exception("a parser failed (%s); the rest of this answer is text", type(self._parser).__name__)
            self._failed = True
            return self._narrator.give_up(news)
        return self._narrator.tell(news, parsed)

    def _parse(self, text: str, tokens: list[int], *, finished: bool) -> Parsed:
        if self._parser is None:
            return Parsed(content=text)
        prompt, self._prompt = self._prompt, None
        delta = self._parser.parse_delta(text, tokens, self._request, prompt_token_ids=prompt, finished=finished)
        if delta is None:
            return Parsed()
        return Parsed(delta.reasoning or "", delta.content or "", tuple(map(_piece, delta.tool_calls or ())))


def _tail(prompt: bytes) -> list[int]:
    return array("I", prompt[-BYTES_PER_TOKEN * _TAIL_TOKENS :]).tolist()


def _piece(call: Any) -> CallPiece:
    function = call.function
    name = (function.name if function else None) or ""
    arguments = (function.arguments if function else None) or ""
    return CallPiece(call.index, call.id or (f"call_{uuid.uuid4().hex}" if name else ""), name, arguments)


def _parser_class(family: Family, *, strict_level: str = "auto") -> Any:
    _prepare_import()
    from vllm.parser import ParserManager  # noqa: PLC0415 - takes seconds

    return ParserManager.get_parser(
        tool_parser_name=family.tool_parser,
        reasoning_parser_name=family.reasoning_parser,
        enable_auto_tools=True,
        is_harmony=bool(_HARMONY & {*family}),
        tool_strict_level=strict_level,
    )


def _tokenizer(folder: Path) -> Any:
    _prepare_import()
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - with what it is for
    from vllm.tokenizers.hf import get_cached_tokenizer  # noqa: PLC0415 - takes seconds

    return get_cached_tokenizer(PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")))


def _prepare_import() -> None:
    """vLLM reads its settings from the environment when it is imported."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _texts_of(parser: Any) -> Iterator[str]:
    """Every text that a parser and its parts name: the marks are among them."""
    for part in (parser, parser.reasoning_parser, parser.tool_parser):
        engine = getattr(part, "_parser_engine", part)
        config = getattr(engine, "parser_engine_config", None)
        if config is not None:
            yield from config.token_id_terminals.values()
            yield from (text for text in config.terminals.values() if isinstance(text, str))
        for holder in (part, *type(part).__mro__):
            yield from (value for value in getattr(holder, "__dict__", {}).values() if isinstance(value, str))
