"""Answers whose replica fails in the middle, as clients see them: the same as of an unbroken run, billed once.

A simulated engine's next token is a function of all tokens before it: one token lost, doubled or changed at the seam
changes all that follow. Scripted answers check that the tokens they go on behind are their own beginning.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

import pytest

from router.retry import Tenacity
from tests.cluster.failing import How, events_of, failing_cluster

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from cluster.api.outcomes import Report
    from cluster.models.served import ServedModel
    from tests.cluster.failing import Cluster, Way

pytestmark = pytest.mark.anyio

SAID = (
    "<think>\nA look first: é 🙂, then more.\n</think>\n\nI look at both, “naïvely”.\n"
    '<tool_call>\n{"name": "look", "arguments": {"path":  "src/naïve.py", "limit": 1.0, "deep": {"a": [1, 2, 3]}}}\n'
    "</tool_call>\n"
    '<tool_call>\n{"name": "look", "arguments": {"path": "b"}}\n</tool_call>'
)
SCRIPT: dict[str, Any] = {"answers": [{"after": "Look.", "text": SAID}]}
SCHEMA: dict[str, Any] = {"type": "object"}
FREE, SCRIPTED = "Say anything.", "Look."
WAYS = pytest.mark.parametrize("way", ["tcp", "handle"])


def messages_body(question: str, **fields: Any) -> dict[str, Any]:
    tools = [{"name": "look", "description": "d", "input_schema": SCHEMA}]
    asked = {"model": "tiny", "max_tokens": 60, "messages": [{"role": "user", "content": question}], "tools": tools}
    return asked | ({"max_tokens": 900} if question == SCRIPTED else {}) | fields


def chat_body(question: str, **fields: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": SCHEMA}}]
    asked = {"model": "tiny", "max_tokens": 60, "messages": [{"role": "user", "content": question}], "tools": tools}
    if fields.get("stream"):
        asked["stream_options"] = {"include_usage": True}
    return asked | ({"max_tokens": 900} if question == SCRIPTED else {}) | fields


APIS = {"messages": ("/v1/messages", messages_body), "chat": ("/v1/chat/completions", chat_body)}


def folded(response: httpx.Response) -> Any:
    """What an answer says, without the ids that differ between any two: whole as it is, events added up. How much of
    it the first event counts depends on the moment."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        return nameless(response.json())
    said: dict[str, Any] = {}
    for event in events_of(response):
        assert "error" not in event, event
        add(said, nameless(event))
    return {place: value for place, value in said.items() if not place.startswith(".message.usage.output_tokens")}


def add(said: dict[str, Any], event: dict[str, Any]) -> None:
    """Strings of one place follow each other, whatever pieces they came in; other values are the last ones."""
    if event.get("type") == "ping":
        return
    prefix = str(event.get("index", ""))
    stack: list[tuple[str, Any]] = [(prefix, event)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack += [(f"{path}.{key}", inner) for key, inner in value.items()]
        elif isinstance(value, list):
            stack += [(f"{path}.{_number(inner, i)}", inner) for i, inner in enumerate(value)]
        elif isinstance(value, str) and path.rsplit(".", 1)[-1] in GROWING:
            said[path] = said.get(path, "") + value
        else:
            said[path] = value


GROWING = {"text", "thinking", "partial_json", "content", "reasoning_content", "reasoning", "arguments"}


def _number(inner: Any, position: int) -> Any:
    return inner.get("index", position) if isinstance(inner, dict) else position


def nameless(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: nameless(inner) for key, inner in value.items() if key not in {"created", "service_tier"}}
        return {key: ("id" if key == "id" and inner is not None else inner) for key, inner in kept.items()}
    if isinstance(value, list):
        return [nameless(inner) for inner in value]
    return re.sub(r"(msg|chatcmpl|toolu|call|sig)[-_]\w+", "id", value) if isinstance(value, str) else value


async def answer(cluster: Cluster, api: str, body: dict[str, Any], *plot: Any) -> tuple[Any, Report]:
    """What a fresh cluster says, when its generations fail like this."""
    await cluster.forget(*plot)
    response = await cluster.post(APIS[api][0], body)
    assert response.status_code == 200, response.text
    report = cluster.reports[-1]
    assert report.outcome == "completed"
    return folded(response), report


@WAYS
@pytest.mark.parametrize("api", ["messages", "chat"])
async def test_an_answer_that_lost_its_replica_is_the_answer_of_an_unbroken_run(
    served: ServedModel, tiny_model: Path, way: Way, api: str
) -> None:
    """Text, reasoning, calls, ending and usage, streamed and whole, wherever it is cut: in thinking, in text, in a
    call's name and arguments, between two calls, in the middle of a character."""
    async with failing_cluster(served, tiny_model, way=way, **SCRIPT) as cluster:
        for question, stream in [(FREE, True), (FREE, False), (SCRIPTED, True), (SCRIPTED, False)]:
            body = APIS[api][1](question, stream=stream)
            whole, unbroken = await answer(cluster, api, body)
            for cut in range(1, unbroken.output_tokens, 7 if question == SCRIPTED else 17):
                broken, report = await answer(cluster, api, body, "lost", cut)
                assert broken == whole, cut
                assert (report.resumes, report.retries, len(report.failed_on)) == (1, 0, 1)
                assert (report.output_tokens, report.cached_tokens) == (unbroken.output_tokens, unbroken.cached_tokens)


@WAYS
async def test_every_way_to_fail_is_survived_before_the_first_token_and_after_it(
    served: ServedModel, tiny_model: Path, way: Way
) -> None:
    """An engine that reports an error, one that raises, one that is gone, a replica that is. Two whose replicas are
    gone are one too many: see the quarantine."""
    async with failing_cluster(served, tiny_model, way=way, **SCRIPT) as cluster:
        body = chat_body(SCRIPTED, stream=True)
        whole, _ = await answer(cluster, "chat", body)
        for how in get_args(How):
            twice = how in ("engine fault", "engine error")
            for after in [(0,), (17,), *([(0, 11), (13, 20)] if twice else [])]:
                broken, report = await answer(cluster, "chat", body, how, *after)
                assert broken == whole, (how, after)
                assert (report.retries, report.resumes) == (after.count(0), len(after) - after.count(0))


@WAYS
async def test_without_retries_and_resumes_the_same_requests_are_lost(
    served: ServedModel, tiny_model: Path, way: Way
) -> None:
    """The negative control. A status where nothing was sent, else an error event; one outcome either way."""
    off = Tenacity(retries=0, resumes=0)
    async with failing_cluster(served, tiny_model, way=way, tenacity=off, **SCRIPT) as cluster:
        for after, stream in [(0, True), (0, False), (20, True), (20, False)]:
            await cluster.forget("lost", after)
            response = await cluster.post("/v1/messages", messages_body(SCRIPTED, stream=stream))
            if stream and after:
                assert events_of(response)[-1]["error"]["type"] == "api_error"
            else:
                assert (response.status_code, response.headers["retry-after"]) == (500, "1")
            assert cluster.reports[-1].outcome == "failed_replica"


async def test_an_answer_that_could_not_be_exact_ends_with_its_own_error(served: ServedModel, tiny_model: Path) -> None:
    """Nothing of it is made up; before the first token it is attempted again as any other."""
    async with failing_cluster(served, tiny_model) as cluster:
        wishes: list[dict[str, Any]] = [{"logprobs": True, "top_logprobs": 1}, {"frequency_penalty": 0.5}]
        for wish in wishes:
            body = chat_body(FREE, stream=True, **wish)
            await cluster.forget("lost", 5)
            events = events_of(await cluster.post("/v1/chat/completions", body))
            assert events[-1]["error"]["code"] == "cut_short"
            assert cluster.reports[-1].outcome == "failed_replica"
            assert (await answer(cluster, "chat", body, "lost", 0))[1].retries == 1


async def test_every_choice_goes_on_alone(served: ServedModel, tiny_model: Path) -> None:
    """One of three fails; the others run on, and the prompt is billed once."""
    async with failing_cluster(served, tiny_model) as cluster:
        body = chat_body(FREE, n=3, seed=1)
        whole, _ = await answer(cluster, "chat", body)
        broken, report = await answer(cluster, "chat", body, "engine error", 9)
        assert report.resumes == 1
        same = [whole["choices"][i]["message"] == broken["choices"][i]["message"] for i in range(3)]
        assert sorted(same) == [False, True, True]  # the seed of the resumed one draws other numbers
        assert whole["usage"] == broken["usage"]


async def test_a_form_goes_on_behind_what_was_said_of_it(served: ServedModel, tiny_model: Path) -> None:
    """The engine is told how much of the prompt it is; the answer is one whole object."""
    wanted = {"type": "object", "properties": {"name": {"type": "string", "minLength": 20}}, "required": ["name"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": wanted}}
    body = chat_body(FREE, response_format=form, max_tokens=500)
    del body["tools"]
    async with failing_cluster(served, tiny_model) as cluster:
        whole, _ = await answer(cluster, "chat", body)
        broken, report = await answer(cluster, "chat", body, "lost", 6)
        assert (broken, report.resumes) == (whole, 1)


async def test_a_stop_sequence_is_found_across_the_seam(served: ServedModel, tiny_model: Path) -> None:
    """One that begins on one replica and ends on the other."""
    async with failing_cluster(served, tiny_model, **SCRIPT) as cluster:
        body = messages_body(SCRIPTED, stop_sequences=["both, “naïvely”"])
        whole, unbroken = await answer(cluster, "messages", body)
        assert whole["stop_reason"] == "stop_sequence"
        for cut in range(unbroken.output_tokens - 6, unbroken.output_tokens):
            assert (await answer(cluster, "messages", body, "lost", cut))[0] == whole, cut


async def test_a_request_over_which_two_replicas_die_is_answered_with_a_typed_error(
    served: ServedModel, tiny_model: Path
) -> None:
    """And at once, on the next try. The third replica lives, and answers others."""
    async with failing_cluster(served, tiny_model, **SCRIPT) as cluster:
        await cluster.forget("lost", 3, 3, 3, 3)
        for _ in range(3):
            response = await cluster.post("/v1/messages", messages_body(SCRIPTED))
            assert (response.status_code, response.json()["error"]["type"]) == (500, "api_error")
            assert response.headers["x-should-retry"] == "false"
        assert len(cluster.asked) == 2
        assert {report.outcome for report in cluster.reports} == {"failed_replica"}
        cluster.plot.after.clear()
        assert (await cluster.post("/v1/messages", messages_body(FREE))).status_code == 200
