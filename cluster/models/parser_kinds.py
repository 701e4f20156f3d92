"""vLLM's parsers, by name: the one place that imports and makes them.

Importing them takes seconds and half a gigabyte, so it happens with the first that is made.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from cluster.output.families import Family, call_marks
from workers.vllm_engine import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_HARMONY: Final = frozenset({"openai", "openai_gptoss"})
_THINKING: Final = {"enable_thinking": True, "thinking": True}


class ParserKind:
    """One pair of parsers over one tokenizer, and the texts that they take away."""

    def __init__(self, family: Family, tokenizer: Any, specials: Mapping[int, str]) -> None:
        self._family = family
        self._tokenizer = tokenizer
        self._combined = _parser_class(family)
        self._calls_only = _parser_class(family._replace(reasoning_parser=None))
        self._strict = _parser_class(family._replace(reasoning_parser=None), strict_level="function")
        self.has_reasoning = family.reasoning_parser is not None
        self.marks = call_marks(family.tool_parser)
        reasoning = self._trial(self._combined).reasoning_parser if self.has_reasoning else None
        self.think_start = str(getattr(reasoning, "reasoning_start_str", None) or "")
        self.think_end = str(getattr(reasoning, "reasoning_end_str", None) or "")
        known = {self.think_start, self.think_end}
        known |= {*self.marks.opens, self.marks.close} if self.marks else set()
        texts = set(known)
        for cls in (self._combined, self._calls_only):
            texts |= set(_texts_of(self._trial(cls))) if cls is not None else set()
        named = "\n".join(texts)
        self.specials = {token: text for token, text in specials.items() if text in named}
        self.framing = tuple({self.think_start, self.think_end, *self.specials.values()} - {""})
        self.closes_calls = self._calls_only is not None and _converts(self._trial(self._calls_only))
        self._ids = dict(tokenizer.get_added_vocab())
        # Special tokens are marks by themselves alone: models spell them out where they write about them.
        self.spelled = {text: self._ids[text] for text in known & self._ids.keys() - set(specials.values())}

        # Text without these can be no mark's beginning. Calls of unknown form may begin with anything.
        is_known = family.tool_parser is None or (self.marks is not None and self.marks.close)
        marks = (self.think_start, self.think_end, *(self.marks.opens if self.marks else ()))
        self.first_of_marks = "".join({mark[0] for mark in marks if mark}) if is_known else ""
        firsts = {*self.first_of_marks, *(mark[0] for mark in self.spelled)}
        # None: any byte may begin a mark.
        self.first_bytes = {first.encode()[:1] for first in firsts} if self.first_of_marks else None

    def __repr__(self) -> str:
        return f"{self._family.tool_parser} and {self._family.reasoning_parser}"

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


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder, as parsers want it."""
    _prepare_import()
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - with what it is for
    from vllm.tokenizers.hf import get_cached_tokenizer  # noqa: PLC0415 - takes seconds

    return get_cached_tokenizer(PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")))


def _prepare_import() -> None:
    """vLLM reads its settings from the environment when it is imported. Its parsers log what models say, a traceback
    for each token of a call that is none."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("vllm.parser", "vllm.reasoning", "vllm.tool_parsers"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _texts_of(parser: Any) -> Iterator[str]:
    """Every text and pattern that a parser, its parts and their modules name: the marks are in them."""
    for part in (*_parts_of(parser), *map(_engine_of, _parts_of(parser))):
        config = getattr(part, "parser_engine_config", None)
        if config is not None:
            yield from (text for text in config.terminals.values() if isinstance(text, str))
        for holder in (part, *type(part).__mro__, *map(_module_of, type(part).__mro__)):
            for name, value in vars(holder).items() if hasattr(holder, "__dict__") else ():
                if not name.startswith("__"):
                    yield from _text_in(value)


def _converts(parser: Any) -> bool:
    """Whether it writes arguments of its own instead of passing on the model's JSON."""
    configs = [getattr(_engine_of(part), "parser_engine_config", None) for part in _parts_of(parser)]
    return any(config is not None and config.arg_converter is not None for config in configs)


def _parts_of(parser: Any) -> tuple[Any, ...]:
    return (parser, parser.reasoning_parser, parser.tool_parser)


def _engine_of(part: Any) -> Any:
    return getattr(part, "_parser_engine", part)


def _module_of(cls: type) -> Any:
    return sys.modules[cls.__module__] if cls.__module__.startswith("vllm.") else None


def _text_in(value: object) -> Iterator[str]:
    pattern = getattr(value, "pattern", value)
    if isinstance(pattern, str):
        yield pattern
        yield pattern.replace("\\", "")
