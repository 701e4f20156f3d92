"""Texts for prompts that a trace gives only as ids of blocks: equal ids, equal texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash

from load_tests.bench.ingress_bodies import Head, Json, text_block
from load_tests.prose import sentences
from load_tests.swarm.dialogue import Prompt, head_text

if TYPE_CHECKING:
    from load_tests.swarm.scenario import Blocks

CHARS_PER_TOKEN: Final = 4
"""Of English prose, as tokenizers of code models cut it."""
MIN_BLOCK_CHARS: Final = 17
"""A hash of 64 bits and the end of a line: blocks with different ids never read alike."""
POOL_SENTENCES: Final = 4_000
MESSAGE_BLOCKS: Final = 8
"""Blocks of one message. Where a block stands in a prompt follows from its id, so messages are shared as blocks are."""
GO_ON: Final = "Go on."


class BlockTexts:
    """The blocks of one session, or of a whole trace where ids are the trace's.

    `scope` sets texts apart that have the same ids; heads are shared by all scopes of the same `salt`. A block of
    `block_tokens` becomes `token_scale` times as many, each of about CHARS_PER_TOKEN characters. Texts are made in
    O(their length), from slices of one pool of prose."""

    def __init__(self, pool: str, *, scope: str, salt: str, block_tokens: int, token_scale: float) -> None:
        self._pool = pool
        self._scope = f"{salt}/{scope}"
        self._salt = salt
        self._block_tokens = block_tokens
        self.block_chars = max(MIN_BLOCK_CHARS, round(block_tokens * token_scale * CHARS_PER_TOKEN))

    @staticmethod
    def pool(seed: int) -> str:
        """The prose that blocks are cut from."""
        return sentences(seed, POOL_SENTENCES).replace("\n", " ")

    def text(self, scope: str, block: int) -> str:
        """One block, a line."""
        digest: int = xxhash.xxh3_64_intdigest(f"{scope}/{block}".encode())
        room = self.block_chars - MIN_BLOCK_CHARS
        at = digest % (len(self._pool) - room)
        return f"{digest:016x}{self._pool[at : at + room]}\n"

    def prompt(self, content: Blocks) -> Prompt:
        """The whole prompt: its head as system text, what follows as a conversation that ends with the user."""
        blocks = [first + at for first, count in content.runs for at in range(count)]
        head_blocks = min(content.head_blocks, len(blocks))
        head = "".join(self.text(f"{self._salt}/{content.head}", at) for at in range(head_blocks))
        texts = [self.text(self._scope, block) for block in blocks[head_blocks:]]
        if texts and len(blocks) * self._block_tokens > content.tokens:
            texts[-1] = texts[-1][: self._last_chars(content.tokens)]
        made = Head(head, []) if head else None
        return Prompt(made, tuple(_conversation(texts)), head_text(made))

    def _last_chars(self, tokens: int) -> int:
        """Of a block that is not full; its mark is never cut."""
        share = (tokens % self._block_tokens) / self._block_tokens
        return max(MIN_BLOCK_CHARS - 1, round(self.block_chars * share))


def _conversation(texts: list[str]) -> list[Json]:
    messages = []
    for number, at in enumerate(range(0, len(texts), MESSAGE_BLOCKS)):
        role = ("user", "assistant")[number % 2]
        messages.append({"role": role, "content": [text_block("".join(texts[at : at + MESSAGE_BLOCKS]).rstrip())]})
    if not messages or messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": [text_block(GO_ON)]})
    return messages
