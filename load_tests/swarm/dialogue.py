"""One agent's conversation so far: what the next request says, in the form of the Messages API."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from load_tests.bench.ingress_bodies import Head, Json, text_block
from load_tests.swarm.scenario import Blocks, ToolRound

if TYPE_CHECKING:
    from load_tests.swarm.block_text import BlockTexts
    from load_tests.swarm.scenario import Turn

NO_ANSWER = "(no answer)"
"""Stands where an assistant's turn must be and none came."""


class Prompt(NamedTuple):
    """What a request says, without the attribution line."""

    head: Head | None
    messages: tuple[Json, ...]


class Dialogue:
    """Turns in, prompts out. Messages are never changed once made, so that forks may share them.

    Invariant: messages alternate, beginning with the user; the last is the assistant's where an answer was taken.
    """

    def __init__(self, head: Head | None, texts: BlockTexts | None = None, messages: tuple[Json, ...] = ()) -> None:
        self._head = head
        self._texts = texts
        self._messages = messages

    def __repr__(self) -> str:
        return f"<Dialogue of {len(self._messages)} messages>"

    def ask(self, turn: Turn) -> Prompt:
        """The prompt of the next request. A prompt given by its blocks stands alone."""
        content = turn.content
        if isinstance(content, Blocks):
            assert self._texts is not None
            return self._texts.prompt(content)
        if isinstance(content, ToolRound):
            self._messages += self._tool_round(content)
        else:
            self._messages += ({"role": "user", "content": [text_block(content.text)]},)
        return Prompt(self._head, self._messages)

    def answered(self, text: str) -> None:
        """Take what the assistant said, or as much of it as came. Empty text is told in words: APIs refuse it."""
        if self._messages:
            self._messages += ({"role": "assistant", "content": [text_block(text.strip() or NO_ANSWER)]},)

    def fork(self) -> Dialogue:
        """A conversation of its own that begins with all of this one."""
        return Dialogue(self._head, self._texts, self._messages)

    def check_integrity(self) -> None:
        """Raise AssertionError when roles do not alternate."""
        roles = [message["role"] for message in self._messages]
        assert roles == [("user", "assistant")[at % 2] for at in range(len(roles))]

    def _tool_round(self, content: ToolRound) -> tuple[Json, ...]:
        """The call joins the answer before it, which is replaced, and its result is the user's turn."""
        call = {"type": "tool_use", "id": content.call_id, "name": content.tool, "input": {"path": content.path}}
        result = {"type": "tool_result", "tool_use_id": content.call_id, "content": content.result}
        *before, answer = self._messages
        self._messages = tuple(before)
        called = answer | {"content": [*answer["content"], call]}
        return called, {"role": "user", "content": [result]}


def prompt_text(prompt: Prompt) -> str:
    """The prompt as one text, in the order in which engines see it: equal beginnings mean equal prompts so far."""
    head = "" if prompt.head is None else f"{prompt.head.system}\n{prompt.head.tools}"
    return head + "".join(map(_message_text, prompt.messages))


def answer_text(text: str) -> str:
    """How an answer would go on in `prompt_text`."""
    return f"\n<assistant>\n{text.strip() or NO_ANSWER}"


def _message_text(message: Json) -> str:
    return f"\n<{message['role']}>\n" + "".join(map(_block_text, message["content"]))


def _block_text(block: Json) -> str:
    if block["type"] == "tool_use":
        return f"\n<call {block['id']} {block['name']} {block['input']}>"
    return str(block["text"] if block["type"] == "text" else block["content"])
