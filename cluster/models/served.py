"""One model as the ingress serves it: everything between a conversation and tokens, and between tokens and text."""

from __future__ import annotations

import asyncio
import logging
import secrets
from array import array
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple, Protocol

from xxhash import xxh3_128

from cluster.models.chat_template import JinjaChatTemplate, NoChatTemplate
from cluster.models.constraint import constraint
from cluster.models.output_parser import ParserFamily, parsers_of
from cluster.models.tokenizer import HfTokenizer
from cluster.models.vllm_chat_template import VllmChatTemplate, vllm_mode
from cluster.output.constraints import direct
from cluster.output.detokenizer import Vocabulary
from cluster.output.families import AUTOMATIC
from cluster.output.parsing import PlainParser
from cluster.prompt.canonical import Canonicaliser
from cluster.prompt.conversation import Conversation
from cluster.prompt.cutting import Cutter
from cluster.prompt.exact_turns import Draft, ExactTurns
from cluster.prompt.fitting import FittedTemplate
from cluster.prompt.growth import Grower
from cluster.prompt.literal import NO_MARKS, LiteralMarks
from cluster.prompt.segments import Segmenter
from cluster.prompt.template import Ask, Encoder, Turn, chars_of, render
from cluster.prompt.threads import Head, ThreadMemory, chain
from cluster.prompt.tool_text import TOLD_PARSER
from cluster.prompt.traits import probe
from cluster.prompt.turns import TurnMemory
from cluster.prompt.warm_path import Asked, Grown, WarmPath
from router.errors import InvalidRequest, ModelUnusable, RequestTooLarge
from router.limits import (
    INLINE_BODY_BYTES,
    INLINE_PROMPT_CHARS,
    MAX_CHARS_PER_TOKEN,
    MAX_REDRAFTS,
    SEGMENT_CACHE_BYTES,
    THREAD_MEMORY_BYTES,
    TURN_MEMORY_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cluster.api.outline import Outline
    from cluster.output.families import Family
    from cluster.output.parsing import OutputParser
    from cluster.prompt.canonical import Rules
    from cluster.prompt.conversation import Change
    from cluster.prompt.template import ChatTemplate
    from workers.engine import Structured

log = logging.getLogger(__name__)


class Canonical(NamedTuple):
    """The canonical conversation and what was changed on the way to it."""

    conversation: Conversation
    changes: tuple[Change, ...]


class Encoded(NamedTuple):
    """A prompt (packed u32), and how many turns of it are the tokens that were generated."""

    tokens: bytes
    spliced: int


class Tokenizer(Encoder, Vocabulary, Protocol):
    """Both directions, and what text may be cut at."""

    def atoms(self) -> Mapping[str, bytes]:
        """Texts that always become one token of their own, and that token; see `Segmenter`."""
        ...

    @property
    def size(self) -> int:
        """All token ids are below it."""
        ...

    @property
    def opening(self) -> bytes:
        """What every text begins with that no template has written, such as a begin token; packed u32, maybe none."""
        ...


class ServedModel:
    """Used on one event loop. `max_model_len` counts prompt and answer together."""

    def __init__(
        self,
        *,
        name: str,
        max_model_len: int,
        rules: Rules,
        template: FittedTemplate,
        tokenizer: Tokenizer,
        parsers: ParserFamily | None = None,
    ) -> None:
        self.name = name
        self.max_model_len = max_model_len
        self.vocabulary: Vocabulary = tokenizer
        self._tokenizer = tokenizer
        self._canonicaliser = Canonicaliser(rules)
        self._template = template
        self._parsers = parsers
        self.marks = template.marks
        self._segmenter = Segmenter(
            tokenizer, atoms=tokenizer.atoms(), cache_bytes=SEGMENT_CACHE_BYTES, seamed=template.marks.seamed
        )
        cutter = Cutter(template, self._segmenter, salt=f"kvist{secrets.token_hex(6)}")
        self.turns = self._exact_turns(cutter) if rules.exact_turns else None
        self.warm_path = self._warm_path(cutter) if rules.inline_system != "merge" else None

    def canonical(self, conversation: Conversation) -> Canonical:
        """Apply the model's canonical rules. Pure; safe in a thread.

        Raises `RequestTooLarge` for text that cannot fit the context window, however it would be encoded, and
        `InvalidRequest` for tokens beyond the vocabulary.
        """
        followed, changes = self._canonicaliser.apply(conversation)
        followed, more = direct(followed)
        canonical = Canonical(followed, (*changes, *more))
        chars, most = chars_of(canonical.conversation), self.max_model_len * MAX_CHARS_PER_TOKEN
        if chars > most:
            raise RequestTooLarge(
                f"{chars} characters of text cannot fit the context window of {self.max_model_len} tokens"
                f" (at most {most} characters are looked at)"
            )
        self._check_ids(conversation)
        return canonical

    async def prompt(self, conversation: Conversation) -> str:
        """The prompt text of a canonical conversation. Long ones are rendered in a thread. Raises `InvalidRequest`.

        It may hold seams, see `cluster.prompt.literal`: `marks.shown` is for people.
        """
        if chars_of(conversation) <= INLINE_PROMPT_CHARS:
            return render(conversation, self._template)
        return await asyncio.to_thread(render, conversation, self._template)

    async def tokens(self, prompt: str) -> bytes:
        """Packed u32. Long prompts are cut, and new text is encoded, in a thread when that is cheaper than to wait."""
        return (await self._encode([prompt]))[0]

    async def draft(self, conversation: Conversation, tenant: str) -> Draft:
        """As `prompt`, but what was generated for this tenant is not written anew: `encode` puts its tokens back."""
        if self.turns is None:
            return Draft(conversation, xxh3_128(), [await self.prompt(conversation)])
        if chars_of(conversation) <= INLINE_PROMPT_CHARS:
            return self.turns.draft(conversation, tenant)
        return await asyncio.to_thread(self.turns.draft, conversation, tenant)

    async def encode(self, draft: Draft) -> Encoded:
        """The tokens of a draft. Turns that answered something else are written anew; after MAX_REDRAFTS all are."""
        encoded = await self._encode(draft.texts)
        if self.turns is not None:
            for attempt in range(MAX_REDRAFTS):
                left = draft.worth_another_try(encoded)
                if len(left) == len(draft.turns):
                    break
                last = attempt == MAX_REDRAFTS - 1
                draft = await asyncio.to_thread(self.turns.redraft, draft, {} if last else left)
                encoded = await self._encode(draft.texts)
            self.turns.used(draft)
        return Encoded(draft.join(encoded), len(draft.turns))

    async def _encode(self, texts: Sequence[str]) -> list[bytes]:
        short = sum(map(len, texts)) <= INLINE_BODY_BYTES
        if short:
            plan = self._segmenter.plan_of(*map(self._segmenter.cut, texts))
        else:
            plan = self._segmenter.plan_of(*[await asyncio.to_thread(self._segmenter.cut, text) for text in texts])
        if not short or plan.missing_chars > INLINE_PROMPT_CHARS:
            # Part by part: a thread that runs on gives the interpreter lock away only when others have waited long.
            for part in plan.batches(INLINE_PROMPT_CHARS):
                await asyncio.to_thread(plan.learn, part)
        encoded = plan.encode_each()
        self._segmenter.remember(plan)
        return encoded

    def _exact_turns(self, cutter: Cutter) -> ExactTurns | None:
        if not cutter.usable:
            log.warning("%s: exact turns are off: its template writes past turns otherwise than new ones", self.name)
            return None
        return ExactTurns(self.name, cutter=cutter, memory=TurnMemory(TURN_MEMORY_BYTES), vocabulary=self.vocabulary)

    def _warm_path(self, cutter: Cutter) -> WarmPath | None:
        grower = Grower(self._template, self._segmenter, cutter)
        if not grower.usable:
            log.warning("%s: every prompt is rendered as a whole: its template writes turns by what follows", self.name)
            return None
        return WarmPath(
            canonicaliser=self._canonicaliser,
            grower=grower,
            segmenter=self._segmenter,
            turns=self.turns,
            memory=ThreadMemory(THREAD_MEMORY_BYTES),
        )

    def asked(self, outline: Outline, tenant: str) -> Asked:
        """How a request is looked for among known conversations. O(its bytes)."""
        bare = Conversation(api="messages", model="", system=outline.system)
        system = self._canonicaliser.apply(bare)[0].system
        head = Head(tenant, self.name, (*(block.text for block in system), None, *outline.parts))
        return Asked(head, outline.raws, chain(head, outline.raws))

    def grown(self, asked: Asked, outline: Outline, done: Callable[[str], None]) -> tuple[Conversation, Grown] | None:
        """The rest of a request as parsed, and its prompt, when it continues a known conversation. `done` is told of
        stages. Raises `ClientError`."""
        found = None if self.warm_path is None else self.warm_path.find(asked)
        if found is None or self.warm_path is None:
            return None
        tail = outline.tail(found.thread.shell, found.boundary.messages)
        done("parse")
        grown = self.warm_path.extend(asked, found, tail, done=done)
        return None if grown is None else (tail, grown)

    async def raw_tokens(self, prompt: str | bytes) -> bytes:
        """Packed u32 of a prompt that no template has written: a text begins as the model's texts do, tokens stay.

        Others get their turn first, since one request may have many prompts.
        """
        await asyncio.sleep(0)
        if isinstance(prompt, bytes):
            return prompt
        opening, tokens = self._tokenizer.opening, await self.tokens(prompt)
        return tokens if tokens.startswith(opening) else opening + tokens

    def _check_ids(self, conversation: Conversation) -> None:
        """Engines would refuse them later, or worse, look them up."""
        size = self._tokenizer.size
        prompts = [prompt for prompt in conversation.prompts if isinstance(prompt, bytes)]
        named = {"prompt": max((max(array("I", prompt)) for prompt in prompts), default=0)}
        named["logit_bias"] = max((token for token, _ in conversation.limits.logit_bias), default=0)
        for field, token in named.items():
            if token >= size:
                raise InvalidRequest(f"{field}: token {token} is not one of the model's {size}")

    def warm(self) -> None:
        """Import what reads answers; takes seconds, so call it in a thread. Raises `ModelUnusable`."""
        if self._parsers is not None:
            self._parsers.warm()

    def parser(self, conversation: Conversation, prompt: bytes) -> OutputParser:
        """What reads an answer to `prompt` (packed u32). What continues a raw prompt is all text."""
        if self._parsers is None or conversation.prompts:
            return PlainParser()
        return self._parsers.parser(conversation, prompt)

    def constraint(self, conversation: Conversation, prompt: bytes) -> Structured | None:
        """The form that the text generated for `prompt` must have, None for any. Raises `InvalidRequest`."""
        return constraint(conversation, prompt, self._parsers)

    def __repr__(self) -> str:
        return f"ServedModel({self.name}, {self.max_model_len} tokens)"


def load_model(
    folder: Path, *, name: str, max_model_len: int, rules: Rules, parsers: Family = AUTOMATIC
) -> ServedModel:
    """Read tokenizer and chat template from a model folder. Raises `ModelUnusable` with a plain reason."""
    template, tokenizer = template_of(folder), HfTokenizer(folder)
    fitting = fitted(template, rules, marks_of(template, tokenizer, rules))
    if not fitting.traits.supports_tools and parsers.tool_parser == AUTOMATIC.tool_parser and find_spec("vllm"):
        parsers = parsers._replace(tool_parser=TOLD_PARSER)  # it is told in text how to call, whatever it once learnt
    return ServedModel(
        name=name,
        max_model_len=max_model_len,
        rules=rules,
        template=fitting,
        tokenizer=tokenizer,
        parsers=parsers_of(folder, parsers, template=template.source, specials=tokenizer.specials()),
    )


def template_of(folder: Path) -> JinjaChatTemplate | VllmChatTemplate:
    """The model's chat template; where it has none, vLLM's own code for its prompts. Raises `ModelUnusable`."""
    mode = vllm_mode(folder)
    try:
        return JinjaChatTemplate(folder)
    except NoChatTemplate:
        if mode is None:
            raise
    return VllmChatTemplate(folder, mode)


def marks_of(template: ChatTemplate, tokenizer: HfTokenizer, rules: Rules) -> LiteralMarks:
    """What texts are to spell out as text: special tokens, and others that the template writes around turns."""
    if not rules.literal_marks:
        return NO_MARKS
    atoms = tokenizer.atoms()
    try:
        around = template.render([Turn("user", "x"), Turn("assistant", "y"), Turn("user", "x")], Ask("closed"))
    except InvalidRequest:
        around = ""
    # Thinking belongs to what models write: templates look for its marks in their answers.
    writes = {atom for atom in atoms if atom in around and "think" not in atom}
    return LiteralMarks(writes | (set(tokenizer.specials().values()) & atoms.keys()))


def fitted(template: ChatTemplate, rules: Rules, marks: LiteralMarks = NO_MARKS) -> FittedTemplate:
    """`template` as it can be asked, under a model's rules. Raises `ModelUnusable` for rules that it cannot follow."""
    try:
        traits = probe(template)
    except InvalidRequest as error:
        raise ModelUnusable(f"the chat template cannot render a user's turn: {error}") from error
    if rules.inline_system == "native" and not traits.accepts_inline_system:
        raise ModelUnusable(
            "inline_system: native: this chat template takes no system message after the first turn; say user or merge"
        )
    return FittedTemplate(template, traits, keep_thinking=rules.keep_thinking, marks=marks)
