"""A conversation with calls and reasoning over real vLLM: every turn finds the blocks of the whole turn before it."""

from __future__ import annotations

import json
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import anthropic
import msgspec
import pytest

from cluster.tenants import Tenants
from tests.cluster.conftest import CONTEXT_TOKENS
from tests.cluster.support import EngineBackend, serving_over
from workers.engine import Structured
from workers.vllm_engine import VllmEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from cluster.backend import Job
    from cluster.models.served import ServedModel
    from tests.cluster.support import EngineStream

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

BLOCK_SIZE = 32
TOOLS: list[Any] = [
    {
        "name": "read_file",
        "description": "The lines of a file.",
        "input_schema": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "limit": {"type": "number"}},
            "required": ["path"],
        },
    },
    {"name": "run", "description": "Run a command.", "input_schema": {"type": "object"}},
]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# What the model says, as no template would write it again: spaces, escapes and numbers are its own.
SCRIPT = [
    "<think>\nThe file first, then.\n</think>\n\nI look at it.\n"
    + call("read_file", r'{"path":  "src/na\u00efve.py", "limit": 1.0}'),
    "<think>Both at once.</think>" + call("run", '{"command": "pytest -q"}') + "\n" + call("run", '{ "command":"ls" }'),
    "<think>\n\nDone, I think: é 🙂\n\n</think>\n\nThe tests pass now, both of them.",
    "Nothing else is left to do.",
]


class ScriptedBackend(EngineBackend):
    """A real engine that is told, by a form of one text, what to say to each request."""

    script: list[str]

    def start(self, job: Job, *, exclude: frozenset[str] = frozenset()) -> EngineStream:
        form = Structured(kind="choice", spec=json.dumps([self.script.pop(0)]))
        sampling = msgspec.structs.replace(job.sampling, structured=form, temperature=0.0)
        return super().start(msgspec.structs.replace(job, sampling=sampling))


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[VllmEngine]:
    arguments = {"block_size": BLOCK_SIZE, "max_model_len": CONTEXT_TOKENS, "kv_cache_memory_bytes": 64 * 2**20}
    engine = VllmEngine(model="tiny", path=tiny_model, engine_args=arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that vLLM imports
        await engine.start()
    yield engine
    await engine.close()


async def test_the_blocks_generated_in_a_turn_are_hit_in_the_next(engine: VllmEngine, served: ServedModel) -> None:
    """Prompt and output, less one block: the last token was never computed, and blocks are found whole."""
    backend = ScriptedBackend(engine)
    async with (
        serving_over(backend, {"tiny": served}, Tenants()) as (url, _),
        anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as sdk,
    ):
        for streams in (False, True):
            backend.script = list(SCRIPT)
            turns = await converse(sdk, streams=streams)
            for turn, following in pairwise(turns):
                whole = prompt_tokens(turn) + turn.usage.output_tokens
                assert (following.usage.cache_read_input_tokens or 0) >= whole - BLOCK_SIZE
                assert prompt_tokens(following) > whole


async def converse(sdk: anthropic.AsyncAnthropic, *, streams: bool) -> list[anthropic.types.Message]:
    """The whole script, every turn sent back as the SDK read it."""
    messages: list[Any] = [{"role": "user", "content": f"Mend src/naïve.py, please ({streams}). " * 4}]
    turns: list[anthropic.types.Message] = []
    for _ in SCRIPT:
        turns.append(await ask(sdk, messages, streams=streams))
        messages += [{"role": "assistant", "content": turns[-1].content}, reply(turns[-1])]
    assert [[block.type for block in turn.content] for turn in turns] == [
        ["thinking", "text", "tool_use"],
        ["thinking", "tool_use", "tool_use"],
        ["thinking", "text"],
        ["text"],
    ]
    assert [turn.stop_reason for turn in turns] == ["tool_use", "tool_use", "end_turn", "end_turn"]
    return turns


async def ask(sdk: anthropic.AsyncAnthropic, messages: list[Any], *, streams: bool) -> anthropic.types.Message:
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 500, "tools": TOOLS, "messages": messages}
    if not streams:
        answer: anthropic.types.Message = await sdk.messages.create(**fields)
        return answer
    async with sdk.messages.stream(**fields) as stream:
        return await stream.get_final_message()


def reply(turn: anthropic.types.Message) -> dict[str, Any]:
    """What a client answers: the results of calls, or the next question."""
    calls = [block for block in turn.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": f"It says {call.input}."} for call in calls]
    return {"role": "user", "content": results or "And now?"}


def prompt_tokens(turn: anthropic.types.Message) -> int:
    usage = turn.usage
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
