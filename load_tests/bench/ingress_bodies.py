"""Conversations of a coding agent as its client sends them: one `/v1/messages` body for every turn.

What makes them hard for a frontend is all there: an attribution header that is new on every request, a long system
text, 20 tools, calls and results with source code in them, a `cache_control` mark that moves on with the last message.
The same seed gives the same bodies wherever Python's standard library, which the results quote, is the same.
"""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path
from typing import Any, Final, NamedTuple

from load_tests.prose import attribution_header, sentences

SYSTEM_SENTENCES: Final = 190  # about 13 KB
TOOLS: Final = 20
TOOL_SENTENCES: Final = 24  # about 48 KB of tools
RESULT_CHARS: Final = 1_700  # with the call and the words around it about 700 tokens
QUOTED: Final = (
    "argparse.py ast.py asyncio/base_events.py asyncio/events.py configparser.py dataclasses.py decimal.py difflib.py "
    "doctest.py email/message.py enum.py fractions.py http/client.py http/server.py inspect.py ipaddress.py locale.py "
    "logging/__init__.py mailbox.py optparse.py pathlib.py pdb.py pickle.py platform.py pydoc.py random.py shutil.py "
    "socket.py ssl.py statistics.py subprocess.py tarfile.py tempfile.py threading.py tokenize.py traceback.py "
    "turtle.py typing.py unittest/mock.py urllib/parse.py urllib/request.py uuid.py zipfile.py"
)
CACHED: Final = {"type": "ephemeral"}

Json = dict[str, Any]


class Head(NamedTuple):
    """What all conversations share: the agent's system text and its tools."""

    system: str
    tools: list[Json]

    @classmethod
    def make(cls, *, tools: int = TOOLS) -> Head:
        """With fewer tools for a short conversation."""
        return cls(sentences(0, SYSTEM_SENTENCES), [_tool(number) for number in range(tools)])


class Talk:
    """One conversation. `body(turn)` has `turn` calls with their results behind the first question."""

    def __init__(self, head: Head, library: Library, *, seed: int) -> None:
        self._head = head
        self._library = library
        self._rng = random.Random(seed)
        self._seed = seed
        self._exchanges: list[tuple[Json, Json]] = []
        self._question = {"role": "user", "content": self._first_blocks()}

    def body(self, turn: int, *, model: str, max_tokens: int) -> bytes:
        """The request of `turn`, as sent. Every call has an attribution header of its own."""
        while len(self._exchanges) < turn:
            self._exchanges.append(self._exchange(len(self._exchanges)))
        messages = [self._question, *(one for pair in self._exchanges[:turn] for one in pair)]
        header = attribution_header(self._rng.randrange(2**40))
        return _encoded(
            {
                "model": model,
                "messages": [*messages[:-1], marked(messages[-1])],
                "system": [
                    {"type": "text", "text": header},
                    {"type": "text", "text": "You are an agent that writes software.", "cache_control": CACHED},
                    {"type": "text", "text": self._head.system, "cache_control": CACHED},
                ],
                "tools": self._head.tools,
                "metadata": {"user_id": f"user_{self._seed:064x}_session_{self._seed:032x}"},
                "max_tokens": max_tokens,
                "stream": True,
            }
        )

    def _first_blocks(self) -> list[Json]:
        reminder = f"<system-reminder>\n{sentences(self._rng.randrange(2**30), 10)}\n</system-reminder>"
        return [text_block(reminder), text_block(f"Task {self._seed}: {sentences(self._rng.randrange(2**30), 3)}")]

    def _exchange(self, number: int) -> tuple[Json, Json]:
        call_id = f"toolu_{self._rng.randrange(16**24):024x}"
        name, quoted = self._library.excerpt(self._rng, RESULT_CHARS)
        tool = self._rng.choice(self._head.tools)["name"]
        call = {"type": "tool_use", "id": call_id, "name": tool, "input": {"path": name, "limit": number}}
        said = sentences(self._rng.randrange(2**30), 2)
        result = {"type": "tool_result", "tool_use_id": call_id, "content": quoted}
        return {"role": "assistant", "content": [text_block(said), call]}, {"role": "user", "content": [result]}


class Library:
    """Source files to quote from."""

    def __init__(self, folder: Path | None = None) -> None:
        root = folder or Path(sysconfig.get_path("stdlib"))
        files = [root / name for name in QUOTED.split()]
        self._files = {file.name: file.read_text(encoding="utf-8").splitlines() for file in files if file.is_file()}
        self._names = sorted(self._files)

    def excerpt(self, rng: random.Random, chars: int) -> tuple[str, str]:
        """A file's name and about `chars` of it, lines numbered, as agents' tools show them."""
        name = rng.choice(self._names)
        lines = self._files[name]
        at = rng.randrange(max(1, len(lines) - 80))
        shown: list[str] = []
        while at < len(lines) and chars > 0:
            shown.append(f"{at + 1:>6}\t{lines[at]}")
            chars -= len(shown[-1]) + 1
            at += 1
        return name, "\n".join(shown)


class Scale(NamedTuple):
    """Tokens of a body with no exchange, and of one more exchange, as a server counts them."""

    base: float
    each: float

    @classmethod
    def between(cls, few: tuple[int, int], many: tuple[int, int]) -> Scale:
        """From two bodies: (exchanges, tokens)."""
        each = (many[1] - few[1]) / (many[0] - few[0])
        return cls(few[1] - few[0] * each, each)

    def exchanges(self, tokens: int) -> int:
        """How many come nearest to `tokens`; at least one."""
        return max(1, round((tokens - self.base) / self.each))


def short_body(seed: int, *, model: str, max_tokens: int) -> bytes:
    """A request of about a hundred tokens, whose answer is what matters."""
    question = {"role": "user", "content": sentences(seed, 6)}
    return _encoded({"model": model, "max_tokens": max_tokens, "stream": True, "messages": [question]})


def _encoded(body: Json) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def text_block(text: str) -> Json:
    """As content has it."""
    return {"type": "text", "text": text}


def marked(message: Json) -> Json:
    """With the mark that moves on with the last message."""
    *blocks, last = message["content"]
    return message | {"content": [*blocks, last | {"cache_control": CACHED}]}


def _tool(number: int) -> Json:
    fields = ("path", "pattern", "limit", "offset")
    described = {
        field: {"type": "integer" if field in ("limit", "offset") else "string", "description": sentences(at, 2)}
        for at, field in enumerate(fields, start=1_000 * (number + 1))
    }
    schema = {"type": "object", "properties": described, "required": ["path"], "additionalProperties": False}
    text = sentences(1_000_000 + number, TOOL_SENTENCES)
    return {"name": f"tool_{number:02d}", "description": text, "input_schema": schema}
