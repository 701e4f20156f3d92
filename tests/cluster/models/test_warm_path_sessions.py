"""Random sessions of agents, with everything that clients put into them: grown prompts equal those read as a whole.

`KVIST_WARM_SESSIONS` sets how many sessions of each family are tried.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from cluster.api.messages import parse_message
from cluster.prompt.exact_turns import Generated
from cluster.prompt.template import render
from router.hashing import block_hashes
from tests.cluster.models.test_warm_path import LATER, TOOLS, as_a_whole, ask, loaded
from tests.cluster.prompt.families import CHATML, PARTS, TOOLS_FIRST, write_family

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.models.served import ServedModel
    from tests.cluster.models.test_warm_path import Asked
    from tests.cluster.prompt.families import Family

SESSIONS = int(os.environ.get("KVIST_WARM_SESSIONS", "12"))
Message = dict[str, Any]
TEXTS = (
    "", "ok", "é", " x ", "  \n", "a\n\nb", "\u2028", "\x00", "\ue83a", "😀", "e\u0301", "<think>", "</think>",
    "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "long " * 40,
    "<system-reminder>hey</system-reminder>", "x-anthropic-billing-header: cch=2;",
    "end\nx-anthropic-billing-header: a",
)  # fmt: skip
INPUTS: tuple[dict[str, Any], ...] = (
    {}, {"command": "ls é"}, {"a": 1.0, "b": "x\n"}, {"b": {"c": [1, {"d": None}]}}, {"x": "<|im_end|>"}, {"s": '"}'},
    {"n": 1e300, "m": -0.0}, {"z": True, "a": "\ue83a"}, {"": ""},
)  # fmt: skip
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
DEFINED = {"type": "tool_definition", "definition": {"name": "New", "input_schema": {"type": "object"}}}


class Session:
    """One agent's requests; `rng` decides everything."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ids: list[str] = []
        self.head: Message = {"model": "m", "max_tokens": 9, "tools": rng.sample([*TOOLS, LATER], rng.randrange(3))}
        self.head |= rng.choice([{}, {"thinking": {"type": "adaptive"}}, {"output_config": {"effort": "low"}}])
        self.messages: list[Message] = [self._user([])]

    @property
    def body(self) -> Message:
        line = {"type": "text", "text": f"x-anthropic-billing-header: cch={self.rng.random()};"}
        return {**self.head, "system": [line, {"type": "text", "text": "Be brief."}], "messages": [*self.messages]}

    def answer(self) -> list[Message]:
        kinds = self.rng.choices(("text", "thinking", "call", "redacted_thinking", "compaction"), (4, 3, 4, 1, 1), k=3)
        return [self._said(kind) for kind in kinds[self.rng.randrange(4) :]]

    def go_on(self, answer: list[Message]) -> None:
        """The answer as a client returns it, results, words, reminders; sometimes another form or another branch."""
        kept = [block for block in answer if block["type"] != "thinking" or self.rng.random() < 0.8]
        self.messages.append({"role": "assistant", "content": [self._rewritten(block) for block in kept]})
        self.messages.append(self._user([block["id"] for block in kept if block["type"] == "tool_use"]))
        if self.rng.random() < 0.4:
            self.messages.append({"role": "system", "content": self._reminder()})
        if self.rng.random() < 0.1:
            at = self.rng.randrange(len(self.messages))
            self.messages[at] = {**self.messages[at], "output_config": {"effort": "low"}}
        if self.rng.random() < 0.1:
            self.messages = self.messages[: self.rng.randrange(0, len(self.messages), 2) + 1]
            if self.messages[-1]["role"] != "user":
                self.messages.append(self._user([]))

    def _text(self) -> Message:
        return {"type": "text", "text": self.rng.choice(TEXTS)}

    def _said(self, kind: str) -> Message:
        text = self.rng.choice(TEXTS)
        if kind == "call":
            self.ids.append(f"toolu_{len(self.ids)}")
            name = self.rng.choice(["Bash", "Later", "Unknown"])
            return {"type": "tool_use", "id": self.ids[-1], "name": name, "input": self.rng.choice(INPUTS)}
        field = {"redacted_thinking": "data", "compaction": "content"}.get(kind, kind)
        return {"type": kind, field: text, **({"signature": ""} if kind == "thinking" else {})}

    def _rewritten(self, block: Message) -> Message:
        if block["type"] != "tool_use" or self.rng.random() < 0.5:
            return block
        return {**block, "input": dict(reversed(block["input"].items()))}

    def _user(self, calls: list[str]) -> Message:
        self.rng.shuffle(calls)
        blocks = [self._result(call) for call in calls if self.rng.random() < 0.95]
        if self.ids and self.rng.random() < 0.1:
            blocks.append(self._result(self.rng.choice([*self.ids, "none"])))
        blocks += [self._text() for _ in range(self.rng.randrange(3))]
        if self.rng.random() < 0.1:
            source = {"type": "text", "media_type": "text/plain", "data": self.rng.choice(TEXTS)}
            blocks.append({"type": "document", "title": "t", "source": source})
        content: Any = blocks or "go on"
        return {"role": "user", "content": content}

    def _result(self, call: str) -> Message:
        parts = [self._text(), IMAGE, {"type": "tool_reference", "tool_name": "Later"}]
        content: Any = self.rng.choice([self.rng.choice(TEXTS), self.rng.sample(parts, self.rng.randrange(4)), None])
        failed = {"is_error": True} if self.rng.random() < 0.2 else {}
        return {"type": "tool_result", "tool_use_id": call, "content": content, **failed}

    def _reminder(self) -> Any:
        shown = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "Later"}}
        gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "Bash"}}
        defined = {"type": "tool_addition", "tool": DEFINED}
        return self.rng.choice([self.rng.choice(TEXTS), [], [self._text(), self._text()], [shown], [gone], [defined]])


def generate(model: ServedModel, asked: Asked, body: Message, answer: list[Message], rng: random.Random) -> None:
    """As if the model had said it, in tokens that nobody would encode its text as."""
    answered = {**body, "messages": [*body["messages"], {"role": "assistant", "content": answer}]}
    before, after = (canonical(model, one) for one in (body, answered))
    prompt, whole = (render(before, model._template), render(after, model._template, ending="closed"))
    if after.messages[-1].role != "assistant" or not whole.startswith(prompt) or model.turns is None:
        return
    words = whole[len(prompt) :].rstrip("\n")
    cut = rng.randrange(len(words) + 1)
    tokens = b"".join(asyncio.run(model.tokens(part)) for part in (words[:cut], words[cut:]) if part)
    said: Any = after.messages[-1].blocks
    model.turns.remember(before, "t", Generated(asked.tokens, asked.past, said, tokens))


def canonical(model: ServedModel, body: Message) -> Any:
    return model.canonical(parse_message(json.dumps(body).encode())).conversation


@pytest.mark.parametrize("family", [CHATML, TOOLS_FIRST, PARTS], ids=str)
def test_prompts_of_random_sessions_grow_as_if_read_as_a_whole(
    family: Family, tmp_path: Path, tiny_model: Path
) -> None:
    """Token by token and hash by hash; most turns are known, and many are the tokens that were generated."""
    model = loaded(write_family(family, tmp_path / "model", tiny_model))
    assert model.warm_path is not None
    grown = spliced = 0
    for seed in range(SESSIONS):
        session = Session(random.Random(f"{family}-{seed}"))
        for _ in range(8):
            body = session.body
            whole = as_a_whole(model, body)
            asked = ask(model, body)
            assert asked.tokens == whole, f"session {seed} of {family}"
            grown += asked.was_known
            if asked.prefix is not None:
                hashes = block_hashes(whole, block_size=16, seed=7)
                assert asked.prefix.hashes(whole, block_size=16, seed=7) == hashes
                spliced += asked.prefix.thread.boundaries[-1].turns.spliced > 0
            answer = session.answer()
            if session.rng.random() < 0.7:
                generate(model, asked, body, answer, session.rng)
            session.go_on(answer)
        model.warm_path.memory.check_integrity()
    assert grown > SESSIONS
    assert spliced > SESSIONS
