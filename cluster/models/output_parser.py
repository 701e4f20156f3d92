"""Reasoning and calls in generated text, read by vLLM's parsers: the one place that calls them."""

from __future__ import annotations

import json
import logging
import uuid
from array import array
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal

from cluster.models.parser_kinds import ParserKind, load_tokenizer
from cluster.models.parser_request import ChatRequests, form_request
from cluster.output.families import AUTOMATIC, Family, family_of, settled
from cluster.output.narrator import CallPiece, Narrator, Parsed
from cluster.output.spelling import Heard, Spelling
from router.errors import ModelUnusable
from router.hashing import BYTES_PER_TOKEN
from workers.engine import Structured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cluster.output.events import Event
    from cluster.prompt.conversation import Conversation

logger = logging.getLogger("ray.serve")

_TAIL_TOKENS: Final = 64  # of the prompt, in which a parser may look for the beginning of reasoning


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
    ends = _end_tokens(folder)
    return ParserFamily(folder, family, {token: text for token, text in specials.items() if token not in ends})


def _end_tokens(folder: Path) -> set[int]:
    """What ends an answer is never part of it."""
    ends: set[int] = set()
    for file in (folder / "config.json", folder / "generation_config.json"):
        said = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
        ends |= {said} if isinstance(said, int) else set(said or ())
    return ends


class ParserFamily:
    """The parsers of one model. Made at load, cheaply; safe to use from threads."""

    def __init__(self, folder: Path, family: Family, specials: Mapping[int, str]) -> None:
        """`specials` are the texts of special tokens that an answer may hold: those that parsers know are shown to
        them, all others are no text."""
        self.names = family
        self._folder = folder
        self._specials = specials
        self._lock = Lock()
        self._tokenizer: Any = None
        self._kinds: dict[Family, ParserKind] = {}
        self._requests = ChatRequests()

    def warm(self) -> None:
        """Import what requests will need, and check it. Takes seconds: call it in a thread. Raises `ModelUnusable`."""
        for family in (self.names, self.names._replace(tool_parser=None)):
            self._kind(family)

    def parser(self, conversation: Conversation, prompt: bytes) -> VllmParser:
        """What reads one answer to `prompt` (packed u32), which this conversation was rendered to."""
        calls = bool(conversation.tools) and conversation.tool_choice.mode != "none"
        kind = self._kind(self.names if calls else self.names._replace(tool_parser=None))
        may_think = conversation.thinking != "off"
        return VllmParser(kind, self._requests.get(conversation, calls=calls), prompt, may_think=may_think)

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

    def _kind(self, family: Family) -> ParserKind:
        with self._lock:
            if family not in self._kinds:
                try:
                    if self._tokenizer is None:
                        self._tokenizer = load_tokenizer(self._folder)
                    self._kinds[family] = ParserKind(family, self._tokenizer, self._specials)
                except Exception as fault:
                    names = " and ".join(name for name in family if name)
                    raise ModelUnusable(f"the parsers {names} do not fit {self._folder}: {fault}") from fault
            return self._kinds[family]


class VllmParser:
    """An `OutputParser` over vLLM's parsers, which are fed one token at a time.

    Whether an answer begins with reasoning is decided here, once: its prompt ends in the mark that opens it, or the
    answer begins with that mark; in a family without one the parser finds out if it `may_think`. A parser that fails is
    not asked again: what it had not said, and the rest, is text.
    """

    def __init__(self, kind: ParserKind, request: Any, prompt: bytes, *, may_think: bool) -> None:
        self._kind = kind
        self._request = request
        self._narrator = Narrator(kind.marks, kind.framing)
        self._parser: Any = None
        self._prompt: list[int] | None = []
        self._spelling = Spelling(kind.spelled)
        self._waiting: list[Heard] | None = None  # until it is known whether the answer begins with reasoning
        self._opened = False
        self._failed = False
        self._said: Literal["reasoning", "content"] | None = None  # by this parser, last
        tail = _tail(prompt)
        if not kind.think_start:
            self._begin(thinking=kind.has_reasoning and may_think)
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
        special = self._kind.specials.get(token, "")
        heard = self._spelling.push(text, token)
        if special:
            heard += [*self._spelling.finish(), Heard(special, [token])]
        return [event for piece in heard for event in self._hear(piece)]

    def finish(self, text: str) -> Sequence[Event]:
        """See `OutputParser`."""
        events = [event for piece in self._spelling.finish() for event in self._hear(piece)]
        if self._waiting is not None:
            events += self._decide(thinking=False)
        if self._failed:
            events += self._narrator.say(text)
        else:
            events += self._fed(text, [], finished=True)
        return events + self._narrator.finish()

    def passes(self, data: bytes, tokens: bytes) -> bool:
        """See `OutputParser`."""
        firsts = self._kind.first_bytes
        if self._said is None or self._failed or firsts is None or not data or self._spelling.holds:
            return False
        if not self._narrator.is_settled or any(first in data for first in firsts):
            return False
        return self._kind.specials.keys().isdisjoint(array("I", tokens))

    def _hear(self, piece: Heard) -> list[Event]:
        if self._waiting is None:
            return self._feed(*piece)
        self._waiting.append(piece)
        begun, mark = "".join(text for text, _ in self._waiting).lstrip(), self._kind.think_start
        if len(begun) < len(mark) and mark.startswith(begun):
            return []
        return self._decide(thinking=begun.startswith(mark))

    def _decide(self, *, thinking: bool) -> list[Event]:
        waited, self._waiting = self._waiting or [], None
        self._begin(thinking=thinking)
        return [event for piece in waited for event in self._feed(*piece)]

    def _begin(self, *, thinking: bool) -> None:
        self._said = None
        try:
            self._parser = self._kind.new(self._request, thinking=thinking)
        except Exception as fault:  # noqa: BLE001 - whatever it is, the answer goes on
            self._fail(fault)

    def _begin_again(self) -> None:
        """A parser for what follows a region of calls: families' own differ in whether they read any further."""
        self._prompt = []
        self._begin(thinking=False)

    def _feed(self, text: str, tokens: list[int]) -> list[Event]:
        if self._said is not None and self._narrator.is_settled and not self._may_hold_mark(text):
            # A parser reads all that it was ever given again and again: it need not see what it would only pass on.
            passed = Parsed(reasoning=text) if self._said == "reasoning" else Parsed(content=text)
            return self._narrator.tell(text, passed)
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
            elif begun := self._narrator.reopened(events):
                self._begin_again()
                events += self._fed(begun, [], is_held=True)
        self._opened &= not events
        return events

    def _may_hold_mark(self, text: str) -> bool:
        firsts = self._kind.first_of_marks
        return not firsts or any(char in text for char in firsts)

    def _fed(self, text: str, tokens: list[int], *, is_held: bool = False, finished: bool = False) -> list[Event]:
        news = "" if is_held else text
        try:
            parsed = self._parse(text, tokens, finished=finished)
        except Exception as fault:  # noqa: BLE001 - whatever it is, the answer goes on
            self._fail(fault)
            return self._narrator.give_up(news)
        return self._narrator.tell(news, parsed)

    def _fail(self, fault: Exception) -> None:
        """Logged without its message, which may hold what the model said."""
        logger.warning("%s failed (%s); the rest of this answer is text", self._kind, type(fault).__name__)
        self._failed = True

    def _parse(self, text: str, tokens: list[int], *, finished: bool) -> Parsed:
        if self._parser is None:
            self._said = "content"
            return Parsed(content=text)
        prompt, self._prompt = self._prompt, None
        delta = self._parser.parse_delta(text, tokens, self._request, prompt_token_ids=prompt, finished=finished)
        if delta is None:
            return Parsed()
        # At the end some parsers close what was cut off.
        calls = () if finished and self._kind.closes_calls else tuple(map(_piece, delta.tool_calls or ()))
        parsed = Parsed(delta.reasoning or "", delta.content or "", calls)
        if parsed.content or parsed.reasoning:
            self._said = "content" if parsed.content else "reasoning"
        return parsed


def _tail(prompt: bytes) -> list[int]:
    return array("I", prompt[-BYTES_PER_TOKEN * _TAIL_TOKENS :]).tolist()


def _piece(call: Any) -> CallPiece:
    function = call.function
    name = (function.name if function else None) or ""
    arguments = (function.arguments if function else None) or ""
    return CallPiece(call.index, call.id or (f"call_{uuid.uuid4().hex}" if name else ""), name, arguments)
