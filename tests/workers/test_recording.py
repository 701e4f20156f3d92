"""Recordings through the real relay agree with what the engine itself held: the fixtures' way to be checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from router.errors import InvalidRequest, WireError
from workers.recording import parse, read_message, replay

KV_EVENTS = Path(os.environ.get("KVIST_SHARED") or Path(__file__).parents[3] / "shared") / "fixtures" / "kv_events"
ACCEPTS = {"accept": {"applied", "partly"}, "reject": {"rejected"}, "any": {"applied", "partly", "rejected"}}


def rows(name: str) -> list[dict[str, Any]]:
    path = KV_EVENTS / name
    return list(replay(parse(path.read_text().splitlines(), where=name)))


def recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (KV_EVENTS / name).read_text().splitlines()]


@pytest.mark.parametrize("name", ["vllm_0_32", "vllm_0_32_bytes"])
def test_a_real_engines_recording_ends_each_frame_with_the_engines_own_blocks(name: str) -> None:
    """Every live batch, and none of the replayed ones twice."""
    truth = {line["seq"]: set(line["resident"]) for line in recorded(f"{name}_truth.jsonl")}
    found = {row["seq"]: set(row["resident"].get("GPU", [])) for row in rows(f"{name}.jsonl")}
    assert found == truth
    assert all(row["verdict"] == "applied" for row in rows(f"{name}.jsonl"))


def test_every_older_form_and_a_relatives_is_read() -> None:
    """Each variant is a stream of its own; full-attention blocks agree with the truth on every medium."""
    truth = [line for line in recorded("array_form.jsonl") if line["socket"] == "live"]
    found = [row for row in rows("array_form.jsonl") if row["seq"] is not None]
    assert len(found) == len(truth)
    for row, line in zip(found, truth, strict=True):
        expected = {medium: set(groups.get("0", {})) for medium, groups in line["resident"].items()}
        assert row["variant"] == line["variant"]
        assert {m: set(h) for m, h in row["resident"].items()} == {m: h for m, h in expected.items() if h}


def test_every_hostile_case_gets_its_verdict_and_does_no_harm() -> None:
    """A fresh replica for each; what must not be there is not, and the next good frame is handled."""
    cases = {line["id"]: line for line in recorded("hostile.jsonl")}
    found = {row["id"]: row for row in rows("hostile.jsonl")}
    assert found.keys() == cases.keys() - {"setup", "follow_up"}
    for name, row in found.items():
        held = {engine_hash for hashes in row["resident"].values() for engine_hash in hashes}
        assert row["verdict"] in ACCEPTS[cases[name]["verdict"]], name
        assert held.isdisjoint(cases[name]["must_not"]), name
        assert row["follow_up_ok"], name
        if cases[name]["verdict"] == "accept":
            assert held == set(cases[name]["resident"]), name


@pytest.mark.parametrize("frames", [[], [b"t"], [b"t", b"p"], [b"", b"t"], [b"t", b"123", b"p"], [b"t"] * 5])
def test_a_message_of_another_shape_is_a_wire_error(frames: list[bytes]) -> None:
    """Too few frames, too many, or a number that is not eight bytes."""
    with pytest.raises(WireError):
        read_message(frames)


def test_the_end_of_a_replay_is_no_batch() -> None:
    """Both with a topic frame and without, as older versions send it."""
    assert read_message([b"", b"", b"\xff" * 8, b""]) is None
    assert read_message([b"", b"\xff" * 8, b""]) is None


def test_a_line_that_is_no_message_is_named() -> None:
    """File and line number, for an operator with a long recording."""
    with pytest.raises(InvalidRequest, match=r"x\.jsonl:2"):
        parse(['{"frames": []}', '{"frame": []}'], where="x.jsonl")


def test_frames_that_are_no_base64_are_a_verdict_and_no_exception() -> None:
    """Of any alphabet: a recording may have been damaged on its way."""
    lines = parse(['{"frames": ["*"]}', '{"frames": ["\u00e9"]}', '{"frames": ["a"]}'], where="x")
    assert [row["verdict"] for row in replay(lines)] == ["rejected"] * 3


def test_a_file_of_cases_needs_its_follow_up() -> None:
    """Else nothing says whether a replica still works after a case."""
    with pytest.raises(InvalidRequest, match="follow_up"):
        list(replay(parse(['{"frames": [], "id": "setup"}'], where="x")))


def test_the_command_prints_one_json_line_per_frame_and_words_without_the_switch() -> None:
    """`kvist events` needs no cluster."""
    path = str(KV_EVENTS / "vllm_0_32.jsonl")
    command = [sys.executable, "-m", "cluster.cli", "events", path]
    words = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    lines = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60).stdout
    found = [json.loads(line) for line in lines.splitlines()]
    assert set(found[0]) == {"seq", "verdict", "reasons", "resident"}
    assert len(found) == len(words) == len(recorded("vllm_0_32_truth.jsonl"))
    assert words[0].startswith("0: applied; resident blocks: ")
