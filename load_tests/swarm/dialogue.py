"""One agent's conversation so far: what the next request says, in the form of the Messages API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from load_tests.bench.ingress_bodies import Head, Json, text_block
from load_tests.swarm.scenario import Ask, Blocks, ToolRound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_tests.swarm.block_text import BlockTexts
    from load_tests.swarm.scenario import Turn

NOT_RUN: Final = "(not run)"
"""The result of a call that the script has none for."""


class Prompt(NamedTuple):
    """What a request says, without the attribution line. `head_text` is the head as one text."""

    head: Head | None
    messages: tuple[Json, ...]
    head_text: str


class Dialogue:
    """Turns in, prompts out. Messages are never changed once made, so that forks may share them.

    Nothing is put into the assistant's mouth: a tool round answers the calls of the last answer, and is told in the
    user's words where that answer called nothing. Invariant: messages alternate, beginning with the user.
    """

    def __init__(self, head: Head | None, texts: BlockTexts | None = None, messages: tuple[Json, ...] = ()) -> None:
        self._head = head
        self._head_text = head_text(head)
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
        self._messages += ({"role": "user", "content": self._user_blocks(content)},)
        return Prompt(self._head, self._messages, self._head_text)

    def answered(self, blocks: Sequence[Json]) -> None:
        """Take what the assistant said, or as much of it as came."""
        if self._messages:
            self._messages += (assistant(blocks),)

    def fork(self) -> Dialogue:
        """A conversation of its own that begins with all of this one."""
        return Dialogue(self._head, self._texts, self._messages)

    def check_integrity(self) -> None:
        """Raise AssertionError when roles do not alternate, or a call has no result right after it."""
        roles = [message["role"] for message in self._messages]
        assert roles == [("user", "assistant")[at % 2] for at in range(len(roles))]
        for message, answer in zip(self._messages[1::2], self._messages[2::2], strict=False):
            results = [block["tool_use_id"] for block in answer["content"] if block["type"] == "tool_result"]
            assert results == _calls(message)

    def _user_blocks(self, content: Ask | ToolRound) -> list[Json]:
        calls = _calls(self._messages[-1]) if self._messages else []
        if not calls:
            return [text_block(content.text if isinstance(content, Ask) else f"{content.title}\n{content.result}")]
        first = content.result if isinstance(content, ToolRound) else NOT_RUN
        results = [_result(call, NOT_RUN if at else first) for at, call in enumerate(calls)]
        return [*results, text_block(content.text)] if isinstance(content, Ask) else results


def assistant(blocks: Sequence[Json]) -> Json:
    """An answer as a message."""
    return {"role": "assistant", "content": list(blocks)}


def head_text(head: Head | None) -> str:
    """System text, then tools; O(their length)."""
    return "" if head is None else f"{head.system}\n{head.tools}"


def prompt_text(prompt: Prompt) -> str:
    """The prompt as one text, in the order in which engines see it: equal beginnings mean equal prompts so far."""
    return prompt.head_text + "".join(map(message_text, prompt.messages))


def _calls(message: Json) -> list[str]:
    return [block["id"] for block in message["content"] if block["type"] == "tool_use"]


def _result(call_id: str, text: str) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text}


def message_text(message: Json) -> str:
    """One message as `prompt_text` has it."""
    return f"\n<{message['role']}>\n" + "".join(map(_block_text, message["content"]))


def _block_text(block: Json) -> str:
    match block["type"]:
        case "tool_use":
            return f"\n<call {block['id']} {block['name']} {block['input']}>"
        case "thinking":
            return str(block["thinking"])
        case "tool_result":
            return f"\n<result {block['tool_use_id']}>{block['content']}"
        case _:
            return str(block["text"])
