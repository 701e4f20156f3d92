"""Conversations grow as real clients' do: what the model said goes back to the letter, nothing is invented for it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.bench.ingress_bodies import Head, text_block
from load_tests.swarm.answer_blocks import NO_ANSWER, AnswerBlocks
from load_tests.swarm.bodies import Caller, encode
from load_tests.swarm.dialogue import NOT_RUN, Dialogue, Prompt, assistant, message_text, prompt_text
from load_tests.swarm.ideal import BLOCK_BYTES, InfiniteCache
from load_tests.swarm.scenario import Ask, ToolRound, Turn
from tests.load_tests.swarm.entries import CALM, common

TOOL = {"name": "read", "description": "Shows a file.", "input_schema": {"type": "object"}}
HEAD = Head("You write software.", [TOOL])
CALL = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}}
ROUND = ToolRound(tool="read", path="a", result="1\timport os")


def turn(content: Any) -> Turn:
    return Turn(content=content, think_s=0.0, max_tokens=5)


def body(prompt: Prompt, api: Any = "messages", attribution: str | None = None) -> dict[str, Any]:
    caller = Caller("s")
    made = encode(prompt, api=api, model="m", max_tokens=5, attribution=attribution, caller=caller)
    found: dict[str, Any] = json.loads(made)
    return found


def talked(*answers: list[dict[str, Any]]) -> Prompt:
    """A question, and a tool round behind each answer."""
    dialogue = Dialogue(HEAD)
    prompt = dialogue.ask(turn(Ask("Why?")))
    for answer in answers:
        dialogue.answered(answer)
        prompt = dialogue.ask(turn(ROUND))
    dialogue.check_integrity()
    return prompt


class TestRounds:
    """How a tool's output follows an answer."""

    def test_a_called_tool_is_answered_by_its_id(self) -> None:
        *_, last = talked([text_block("Let me look."), CALL]).messages
        assert last["content"] == [{"type": "tool_result", "tool_use_id": "t1", "content": ROUND.result}]

    def test_without_a_call_the_user_tells_of_the_output(self) -> None:
        """No call is put into the assistant's mouth: an engine must find its own words again."""
        *_, said, last = talked([text_block(" Let me look. ")]).messages
        assert said["content"] == [text_block(" Let me look. ")]
        assert last["content"] == [text_block("Output of read a:\n1\timport os")]

    def test_every_call_gets_a_result_and_a_users_words_follow_them(self) -> None:
        dialogue = Dialogue(HEAD)
        dialogue.ask(turn(Ask("Why?")))
        dialogue.answered([CALL, CALL | {"id": "t2"}])
        prompt = dialogue.ask(turn(Ask("Stop.")))
        first, second, words = prompt.messages[-1]["content"]
        assert (first["tool_use_id"], second["tool_use_id"]) == ("t1", "t2")
        assert first["content"] == second["content"] == NOT_RUN
        assert words == text_block("Stop.")

    def test_forks_begin_with_all_of_their_parent_and_go_their_own_way(self) -> None:
        dialogue = Dialogue(HEAD)
        before = dialogue.ask(turn(Ask("Plan."))).messages
        dialogue.answered([text_block("Planned.")])
        one, other = dialogue.fork(), dialogue.fork()
        prompts = [fork.ask(turn(Ask(words))) for fork, words in ((one, "You are 0."), (other, "You are 1."))]
        assert [prompt.messages[:1] for prompt in prompts] == [before, before]
        assert prompts[0].messages[:-1] == prompts[1].messages[:-1]
        assert dialogue.ask(turn(ROUND)).messages[:2] == prompts[0].messages[:2]


class TestBodies:
    """Both APIs say the same."""

    def test_messages_have_the_line_first_and_the_mark_last(self) -> None:
        found = body(talked([text_block("Yes."), CALL]), attribution="x-anthropic-billing-header: cch=1;")
        assert [block["text"] for block in found["system"]] == ["x-anthropic-billing-header: cch=1;", HEAD.system]
        assert found["tools"] == [TOOL]
        assert json.dumps(found["messages"]).count("cache_control") == 1
        assert "cache_control" in found["messages"][-1]["content"][-1]

    def test_chat_has_tools_calls_and_results_in_its_own_form(self) -> None:
        found = body(talked([text_block("Yes."), CALL]), "chat", attribution="line")
        system, user, said, result = found["messages"]
        assert system == {"role": "system", "content": f"line\n{HEAD.system}"}
        assert user == {"role": "user", "content": "Why?"}
        assert said["content"] == "Yes."
        assert said["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path": "a"}'}
        assert result == {"role": "tool", "tool_call_id": "t1", "content": ROUND.result}
        assert found["tools"][0]["function"]["parameters"] == TOOL["input_schema"]
        assert found["stream_options"] == {"include_usage": True}

    @pytest.mark.parametrize("api", ["messages", "chat"])
    def test_a_turn_extends_the_one_before(self, api: str) -> None:
        """Up to the mark that moves, every message stays as it was."""
        before = body(talked([text_block("Yes.")]), api)["messages"]
        after = body(talked([text_block("Yes.")], [text_block("No.")]), api)["messages"]
        before[-1]["content"] = after[len(before) - 1]["content"]
        assert after[: len(before)] == before

    def test_sub_agents_tell_their_own_id_and_their_sessions(self) -> None:
        caller = Caller("s", "sub0")
        assert caller.headers("messages") == {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "sub0"}
        assert caller.headers("chat") == {"x-session-id": "s"}


class TestAnswers:
    """An answer's blocks, from its events."""

    def test_messages_keep_text_thinking_and_calls_to_the_letter(self) -> None:
        answer = AnswerBlocks("messages")
        thinking = [("thinking_delta", "thinking", "Hm"), ("signature_delta", "signature", "s")]
        text = [("text_delta", "text", " a"), ("text_delta", "text", "b ")]
        call = [("input_json_delta", "partial_json", part) for part in ('{"pa', 'th": "a"}')]
        begun: list[dict[str, Any]] = [{"type": "thinking"}, {"type": "text", "text": ""}, CALL | {"input": {}}]
        for index, (block, deltas) in enumerate(zip(begun, (thinking, text, call), strict=True)):
            answer.take({"type": "content_block_start", "index": index, "content_block": block})
            for kind, field, said in deltas:
                delta = {"type": kind, field: said}
                answer.take({"type": "content_block_delta", "index": index, "delta": delta})
        assert answer.blocks() == [{"type": "thinking", "thinking": "Hm", "signature": "s"}, text_block(" ab "), CALL]

    def test_chat_puts_the_pieces_of_calls_together(self) -> None:
        answer = AnswerBlocks("chat")
        call = {"index": 0, "id": "t1", "function": {"name": "read", "arguments": '{"path"'}}
        for delta in (
            {"content": "x"},
            {"tool_calls": [call]},
            {"tool_calls": [{"index": 0, "function": {"arguments": ': "a"}'}}]},
        ):
            answer.take({"choices": [{"delta": delta}]})
        answer.take({"choices": [], "usage": {}})
        assert answer.blocks() == [text_block("x"), CALL]

    def test_a_call_cut_in_the_middle_was_never_made(self) -> None:
        answer = AnswerBlocks("chat")
        answer.take(
            {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "t", "function": {"arguments": '{"p'}}]}}]}
        )
        assert answer.blocks() == [text_block(NO_ANSWER)]


def brute_seen(text: str, before: list[str]) -> int:
    """Whole blocks of the longest beginning that `text` shares with any text before it."""
    longest = max((len(common(text, other)) for other in before), default=0)
    return longest // BLOCK_BYTES * BLOCK_BYTES


@CALM
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.text("ab", max_size=90)), max_size=12))
def test_the_ideal_is_the_longest_shared_beginning_of_all_earlier_texts(parts: list[tuple[int, int, str]]) -> None:
    """Texts that share some of their blocks, then part."""
    cache, before = InfiniteCache(), list[str]()
    for seed, blocks, tail in parts:
        rng = random.Random(seed)
        text = "".join(rng.choices("xy", k=blocks * BLOCK_BYTES)) + tail
        sight = cache.see(text)
        assert (sight.seen, sight.size) == (brute_seen(text, before), len(text))
        before.append(text)


def test_an_answer_is_known_to_the_ideal_when_it_comes_back() -> None:
    """All of a turn but what the user added."""
    cache, dialogue = InfiniteCache(), Dialogue(Head("s" * 1000, []))
    first = dialogue.ask(turn(Ask("q" * 500)))
    answer = [text_block("a" * 800)]
    cache.see(prompt_text(first) + message_text(assistant(answer)), cache.see(prompt_text(first)))
    dialogue.answered(answer)
    second = prompt_text(dialogue.ask(turn(Ask("new"))))
    sight = cache.see(second)
    assert sight.size - sight.seen < BLOCK_BYTES + len("\n<user>\nnew")
