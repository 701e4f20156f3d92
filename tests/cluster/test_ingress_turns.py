"""Real clients return turns in their own form; the next prompt extends the last one and its answer all the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest

from cluster.tenants import Tenant, Tenants
from tests.cluster.support import serving

if TYPE_CHECKING:
    from cluster.models.served import ServedModel
    from tests.cluster.support import Service

pytestmark = pytest.mark.anyio
SYSTEM = "You are careful."
SCHEMA: Any = {"type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}}}
ARGUMENTS = '{"timeout": 10000.0,   "command": "ls caf\\u00e9\\/"}'
CALL = f'<tool_call>\n{{"name": "Bash", "arguments": {ARGUMENTS}}}\n</tool_call>'
CALLING = f"<think>\nA look first.\n</think>\n\nI look.\n{CALL}"
ANSWERING = "<think>\nOne file.\n</think>\n\nThere is a.txt."


def say(service: Service, served: ServedModel, text: str) -> bytes:
    """What the engine says next: encoded as a model might have sampled it, and as no tokenizer would."""
    cut, atoms = served._segmenter.cut(text).segments, served._segmenter.atom_tokens()
    tokens: list[bytes] = []
    for part in (*cut, "<|im_end|>"):
        tokens += [atoms[part]] if part in atoms else served._segmenter._encoder.encode_batch(list(part))
    service.engine.script = tokens
    return b"".join(tokens)


async def assert_extended(service: Service, said: list[bytes]) -> None:
    """Every prompt begins with the one before and what was said to it."""
    jobs = service.backend.jobs
    for before, after, answer in zip(jobs, jobs[1:], said, strict=False):
        assert after.tokens.startswith(before.tokens + answer)
    await service.ended(len(jobs))
    assert [report.spliced_turns for report in service.reports] == list(range(len(jobs)))
    assert [report.written_turns for report in service.reports] == [0] * len(jobs)


@pytest.mark.parametrize("thinking", ["kept", "dropped"])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_turns_of_messages_are_exact(
    service: Service, served: ServedModel, thinking: str, streamed: bool
) -> None:
    """Claude Code writes Bash's arguments in an order of its own, and parsed."""
    tools: Any = [{"name": "Bash", "description": "Runs it.", "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": f"Look, {thinking} {streamed}."}]
    said = []
    async with anthropic.AsyncAnthropic(base_url=service.url, api_key="any", max_retries=0) as sdk:

        async def ask() -> Any:
            asked: Any = {"model": "tiny", "max_tokens": 900, "system": SYSTEM, "messages": messages, "tools": tools}
            if not streamed:
                return await sdk.messages.create(**asked)
            async with sdk.messages.stream(**asked) as stream:
                return await stream.get_final_message()

        for text in (CALLING, ANSWERING):
            said.append(say(service, served, text))
            answer = await ask()
            blocks = [block.model_dump(exclude_none=True) for block in answer.content]
            for block in blocks:
                if block["type"] == "tool_use":
                    assert block["input"] == {"timeout": 10000, "command": "ls café/"}
                    block["input"] = {"command": block["input"]["command"], "timeout": 10000}
            kept = [block for block in blocks if thinking == "kept" or block["type"] != "thinking"]
            calls = [block for block in kept if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "a.txt"} for call in calls]
            messages += [{"role": "assistant", "content": kept}, {"role": "user", "content": results or "And now?"}]
        await ask()
    await assert_extended(service, said)


@pytest.mark.parametrize("thinking", ["kept", "dropped"])
async def test_turns_of_chat_are_exact(service: Service, served: ServedModel, thinking: str) -> None:
    """OpenCode writes arguments anew, compactly."""
    tools: Any = [{"type": "function", "function": {"name": "Bash", "description": "Runs it.", "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Look, {thinking}."}]
    said = []
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0) as sdk:
        for text in (CALLING, ANSWERING, "Bye."):
            said.append(say(service, served, text))
            answer = await sdk.chat.completions.create(model="tiny", messages=messages, tools=tools)
            message = answer.choices[0].message.model_dump(exclude_none=True)
            for call in message.get("tool_calls", []):
                arguments = json.loads(call["function"]["arguments"])
                call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
            if thinking == "dropped":
                message = {key: part for key, part in message.items() if key not in ("reasoning", "reasoning_content")}
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": "a.txt"}
                for call in message.get("tool_calls", [])
            ]
            messages += [message, *(results or [{"role": "user", "content": "And now?"}])]
    await assert_extended(service, said)


async def test_turns_of_responses_are_exact(service: Service, served: ServedModel) -> None:
    tools: Any = [
        {"type": "function", "name": "Bash", "description": "Runs it.", "parameters": SCHEMA, "strict": False}
    ]
    items: list[Any] = [{"role": "user", "content": "Look."}]
    said = []
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0) as sdk:
        for text in (CALLING, ANSWERING, "Bye."):
            said.append(say(service, served, text))
            answer = await sdk.responses.create(
                model="tiny", instructions=SYSTEM, input=items, tools=tools, store=False
            )
            given = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
            calls = [item for item in given if item["type"] == "function_call"]
            results = [
                {"type": "function_call_output", "call_id": call["call_id"], "output": "a.txt"} for call in calls
            ]
            items += [*given, *(results or [{"role": "user", "content": "And now?"}])]
    await assert_extended(service, said)


async def test_every_choice_is_remembered_and_an_answer_that_was_cut_is_not(
    service: Service, served: ServedModel
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0) as sdk:
        ask: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Choose."}]}
        back: Any = [*ask["messages"], {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}]
        say(service, served, "Yes. No.")
        await sdk.chat.completions.create(**ask, max_tokens=4)
        await sdk.chat.completions.create(model="tiny", messages=back)
        report = await service.ended(2)
        assert (report.spliced_turns, report.written_turns) == (0, 1)
        said = say(service, served, "Yes.")
        await sdk.chat.completions.create(**ask, n=2)
        await sdk.chat.completions.create(model="tiny", messages=back)
    assert service.backend.jobs[-1].tokens.startswith(service.backend.jobs[0].tokens + said)


async def test_another_tenant_never_gets_what_was_generated(served: ServedModel) -> None:
    tenants = Tenants({"key-a": Tenant("a"), "key-b": Tenant("b")})
    ask: Any = {"model": "tiny", "messages": [{"role": "user", "content": "A secret?"}]}
    back: Any = [*ask["messages"], {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}]
    async with serving({"tiny": served}, tenants) as service:
        say(service, served, "<think>\nNobody knows.\n</think>\n\nYes.")
        for key, messages in (("key-a", ask["messages"]), ("key-b", back), ("key-a", back)):
            async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key=key, max_retries=0) as sdk:
                await sdk.chat.completions.create(model="tiny", messages=messages)
        await service.ended(3)
        assert [report.spliced_turns for report in service.reports] == [0, 0, 1]
        texts = [served.vocabulary.bytes_of(job.tokens).decode() for job in service.backend.jobs]
        assert ["Nobody knows." in text for text in texts] == [False, False, True]
