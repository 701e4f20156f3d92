"""Traces give ids of blocks; prompts are made so that equal ids read alike and others do not."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from load_tests.swarm.block_text import CHARS_PER_TOKEN, GO_ON, BlockTexts
from load_tests.swarm.dialogue import Dialogue, prompt_text
from load_tests.swarm.scenario import Blocks
from load_tests.swarm.settings import Settings, make_settings
from load_tests.swarm.trace import read_trace
from router.errors import InvalidRequest
from tests.load_tests.swarm.entries import CALM, common

if TYPE_CHECKING:
    from pathlib import Path

POOL = BlockTexts.pool(0)
IDS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def texts(scope: str = "s", salt: str = "", scale: float = 1.0) -> BlockTexts:
    return BlockTexts(POOL, scope=scope, salt=salt, block_tokens=16, token_scale=scale)


def text_of(ids: list[int], maker: BlockTexts | None = None, **more: Any) -> str:
    content = Blocks(runs=tuple((one, 1) for one in ids), tokens=16 * len(ids), **more)
    return prompt_text((maker or texts()).prompt(content))


@CALM
@given(IDS, IDS)
def test_prompts_share_their_text_as_far_as_their_ids(one: list[int], other: list[int]) -> None:
    """Nothing less than the shared blocks, and less than one block more."""
    shared = len(common(one, other))
    same = len(common(text_of(one), text_of(other)))
    block_chars = 16 * CHARS_PER_TOKEN
    assert same >= (block_chars - 1) * shared
    if shared < min(len(one), len(other)):
        assert same < (block_chars + 20) * (shared + 1)


@CALM
@given(IDS)
def test_a_prompt_is_a_conversation_that_ends_with_the_user(ids: list[int]) -> None:
    messages = texts().prompt(Blocks(runs=tuple((one, 1) for one in ids), tokens=16 * len(ids))).messages
    assert [message["role"] for message in messages] == [("user", "assistant")[at % 2] for at in range(len(messages))]
    assert len(messages) % 2 == 1
    assert all(message["content"][0]["text"] for message in messages)


def test_scopes_and_salts_set_equal_ids_apart() -> None:
    plain = text_of([1, 2])
    assert common(plain, text_of([1, 2], texts("other"))) == "\n<user>\n"
    assert common(plain, text_of([1, 2], texts(salt="new"))) == "\n<user>\n"


def test_heads_of_equal_size_are_shared_between_sessions() -> None:
    """What follows is the session's own."""
    one, other = (text_of([1, 2, 3, 4], texts(scope), head="h-2", head_blocks=2) for scope in "ab")
    shared = common(one, other)
    assert one.startswith(texts("a").text("/h-2", 0) + texts("b").text("/h-2", 1))
    assert "\n<user>\n" in shared
    assert len(shared) < len(one) / 2 + 30


@CALM
@given(st.floats(0.01, 4.0), st.integers(1, 40))
def test_the_length_follows_the_scale_down_to_a_blocks_mark(scale: float, blocks: int) -> None:
    maker = texts(scale=scale)
    assert maker.block_chars >= 17
    assert maker.block_chars == max(17, round(16 * scale * CHARS_PER_TOKEN))
    assert len(maker.text("s", blocks)) == maker.block_chars


def test_a_block_that_is_not_full_is_shorter_and_begins_like_the_full_one() -> None:
    full, half = (texts().prompt(Blocks(runs=((1, 2),), tokens=tokens)) for tokens in (32, 24))
    full_text, half_text = (prompt.messages[0]["content"][0]["text"] for prompt in (full, half))
    assert full_text.startswith(half_text)
    assert len(full_text) - len(half_text) == 31


def written(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines)))
    return path


def test_requests_with_timestamps_are_sessions_of_one_turn(tmp_path: Path) -> None:
    lines = [
        {"timestamp": at * 1000, "input_length": 700, "output_length": 30, "hash_ids": [0, at]} for at in (2, 3, 6)
    ]
    trace = read_trace(written(tmp_path, lines), Settings(scenario="trace", token_scale=0.5))
    assert [trace.session(number).due_s for number in range(3)] == [0.0, 1.0, 4.0]
    assert {len(trace.session(number).turns) for number in range(3)} == {1}
    assert trace.session(0).turns[0].max_tokens == 15
    one, other = (Dialogue(None, trace.texts(n)).ask(trace.session(n).turns[0]) for n in (0, 1))
    assert len(common(prompt_text(one), prompt_text(other))) > 900


def a_session(number: int) -> dict[str, Any]:
    def request(blocks: int, think: float) -> dict[str, Any]:
        return {"i": 64 * blocks, "o": 10, "think": think or None, "h": [[1, blocks]]}

    sub = {"type": "subagent", "agent_id": "agent_001", "tool_tokens": 64, "system_tokens": 0}
    sub |= {"requests": [request(2, 0.0), request(3, 9.0)]}
    requests = [request(4, 0.0), request(5, 3.0), sub, request(6, 50.0), request(7, 500.0)]
    return {"id": f"s{number}", "tool_tokens": 64, "system_tokens": 64, "block_size": 64, "requests": requests}


def test_sessions_have_their_pauses_and_their_sub_agents(tmp_path: Path) -> None:
    """A pause in which a sub-agent worked is its; others are scaled and cut at the longest allowed."""
    settings = Settings(scenario="trace", think_scale=0.5, max_think_s=100.0)
    trace = read_trace(written(tmp_path, [a_session(0)]), settings)
    turns = trace.session(0).turns
    assert [turn.think_s for turn in turns] == [0.0, 1.5, 0.0, 100.0]
    assert [len(turn.branches) for turn in turns] == [0, 1, 0, 0]
    assert [turn.think_s for turn in turns[1].branches[0].turns] == [0.0, 4.5]


def test_sessions_share_a_head_and_nothing_else(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, [a_session(0), a_session(1)]), Settings(scenario="trace"))
    one, other = (Dialogue(None, trace.texts(n)).ask(trace.session(n).turns[0]) for n in (0, 1))
    assert one.head == other.head is not None
    assert one.messages != other.messages


def test_the_seed_chooses_which_sessions_are_played(tmp_path: Path) -> None:
    path = written(tmp_path, [a_session(number) | {"tool_tokens": 64 * number} for number in range(1, 9)])
    chosen = [
        [turn.content for number in range(3) for turn in read_trace(path, settings).session(number).turns]
        for settings in (Settings(scenario="trace", sessions=3, seed=seed) for seed in (1, 1, 2))
    ]
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize("data", [b"", b"{broken\n", b'{"neither": 1}\n', b'{"hash_ids": [1]}\n', b"[1]\n"])
def test_a_file_that_is_no_trace_is_refused_in_words(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(data)
    with pytest.raises(InvalidRequest, match="trace"):
        read_trace(path, Settings(scenario="trace"))


@pytest.mark.parametrize(
    ("given_settings", "words"),
    [
        ({"agents": 0}, "agents"),
        ({"agents": 10**9}, "agents"),
        ({"agents": 5, "rate": 2.0}, "--agents"),
        ({"scenario": "trace"}, "--trace"),
        ({"trace": "f", "scenario": "trace", "rate": 1.0, "rate_of": "requests"}, "session of one"),
        ({"cancel_share": 1.5}, "cancel_share"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_words(given_settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        make_settings(**given_settings)


def test_a_finite_scenario_is_measured_whole_unless_told_otherwise() -> None:
    assert make_settings(scenario="fork").warmup_s == 0.0
    assert make_settings(scenario="fork", warmup_s=3.0).warmup_s == 3.0
    assert make_settings().warmup_s > 0


def test_the_last_word_is_the_users_where_a_prompt_would_end_with_the_assistant() -> None:
    messages = texts().prompt(Blocks(runs=((0, 9),), tokens=144)).messages
    assert messages[-1]["content"][0]["text"] == GO_ON
