"""Recorded sessions of real agents: each request's canonical prompt extends the one before, token by token."""

from __future__ import annotations

import asyncio
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from cluster.models.chat_template import JinjaChatTemplate
from cluster.models.served import fitted, load_model
from cluster.prompt.canonical import Canonicaliser, Rules
from cluster.prompt.conversation import Thinking
from cluster.prompt.template import render
from tests.cluster.prompt.families import FAMILIES, Family, write_family
from tests.cluster.prompt.sessions import SESSIONS, conversations_of
from workers.models import prepare_tiny

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.models.served import ServedModel
    from cluster.prompt.conversation import Conversation

# How many pairs of requests each session has: a session that no longer groups would prove nothing.
PAIRS = {
    "cc_2.1.114_session_a": 2,
    "cc_2.1.114_session_b": 2,
    "cc_2.1.332_count_tokens": 0,
    "cc_2.1.332_repo_prompt_1": 2,
    "cc_2.1.332_repo_prompt_2": 2,
    "cc_2.1.332_thinking_tools": 2,
    "cc_2.1.332_title_call": 0,
    "cc_2.1.332_toolsearch_mcp": 3,
    "cc_2.1.332_total_tokens": 8,
}
SIBLINGS = [("cc_2.1.332_repo_prompt_1", "cc_2.1.332_repo_prompt_2"), ("cc_2.1.114_session_a", "cc_2.1.114_session_b")]


@pytest.fixture(scope="module", params=["system-first", "tools-first"])
def model(request: pytest.FixtureRequest, cache_dir: Path) -> ServedModel:
    folder = prepare_tiny(cache_dir, template=request.param)
    return load_model(folder, name=request.param, max_model_len=65_536, rules=Rules())


def prompt_of(conversation: Conversation, model: ServedModel) -> array[int]:
    """Without the header of the turn to be generated."""
    text = render(model.canonical(conversation).conversation, model._template, ending="closed")
    return array("I", asyncio.run(model.tokens(text)))


def shared_tokens(one: array[int], other: array[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("session", SESSIONS)
def test_a_request_extends_the_one_before_it(shared: Path, model: ServedModel, session: str) -> None:
    pairs = 0
    for thread in conversations_of(shared, session):
        prompts = [prompt_of(conversation, model) for conversation in thread]
        for before, after in pairwise(prompts):
            pairs += 1
            assert after[: len(before)] == before
            assert len(after) > len(before)
    assert pairs == PAIRS[session]


@pytest.mark.parametrize(("one", "other"), SIBLINGS)
def test_sessions_on_one_repository_share_all_but_what_was_asked(
    shared: Path, model: ServedModel, one: str, other: str
) -> None:
    """Of the first request's prompt, less the question itself, at least 99 %."""
    first, second = (prompt_of(conversations_of(shared, name)[0][0], model) for name in (one, other))
    question = conversations_of(shared, one)[0][0].messages[0].blocks[-1].text  # type: ignore[union-attr]
    common = len(first) - len(asyncio.run(model.tokens(question))) // 4
    assert shared_tokens(first, second) >= 0.99 * common


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_request_extends_the_one_before_it_in_every_family(
    shared: Path, tiny_model: Path, tmp_path: Path, family: Family
) -> None:
    """In text: every turn begins with a mark that is a token of its own. Where a family forgets old thoughts whatever
    it is asked, this holds for all else."""
    template = fitted(JinjaChatTemplate(write_family(family, tmp_path, tiny_model)), Rules())
    rules = Canonicaliser(Rules())
    pairs = 0
    for session in SESSIONS:
        for thread in conversations_of(shared, session):
            thread = [thoughtless(request) if family.forgets_thoughts else request for request in thread]  # noqa: PLW2901
            prompts = [render(rules.apply(request)[0], template, ending="closed") for request in thread]
            for before, after in pairwise(prompts):
                pairs += 1
                assert after.startswith(before)
                assert len(after) > len(before)
    assert pairs == sum(PAIRS.values())


def thoughtless(conversation: Conversation) -> Conversation:
    messages = (
        replace(message, blocks=tuple(block for block in message.blocks if not isinstance(block, Thinking)))
        for message in conversation.messages
    )
    return replace(conversation, messages=tuple(messages))


def test_a_tool_found_in_mid_session_is_described_where_it_was_found(shared: Path, model: ServedModel) -> None:
    thread = conversations_of(shared, "cc_2.1.332_toolsearch_mcp")[0]
    before, after = (render(model.canonical(request).conversation, model._template) for request in thread[:2])
    assert "The tool mcp__beta__zt1 can be called from here on." not in before
    assert after.index("The tool mcp__beta__zt1 can be called from here on.") > len(before) - 100
    assert "DeferredToolPlaceholder" not in after
