"""`kvist explain`: one line per request, complete enough to check every canonical rule by."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from cluster.cli_explain import standing_words
from router.hashing import block_hashes, seed_of
from router.policy import Score
from tests.cluster.support import REPLICA, packed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.support import Service

HEADER = "x-anthropic-billing-header: cc_version=2.1.114.9e7; cch=ecc04;"
HI = [{"role": "user", "content": "Hi"}]
BODY = {"model": "m", "max_tokens": 9, "system": f"{HEADER}\nBe brief.", "messages": [{"role": "user", "content": "é"}]}


def explained(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and lines of `kvist explain --json`."""
    result = CliRunner().invoke(app, ["explain", "--json", *arguments])
    return result.exit_code, [json.loads(line) for line in result.output.splitlines()]


def written(folder: Path, *lines: object) -> str:
    """A file of these lines."""
    file = folder / "requests.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return str(file)


def test_a_line_holds_the_prompt_its_tokens_hashes_and_every_change(tmp_path: Path) -> None:
    """The hashes are those a router would compute for this model without a tenant."""
    code, [row] = explained(written(tmp_path, BODY))
    assert (code, row["model"], row["api"], row["block_size"]) == (0, "m", "messages", 32)
    assert "é" in row["canonical_text"]
    assert HEADER not in row["canonical_text"]
    assert row["tokens"] == len(row["token_ids"])
    hashes = block_hashes(packed(row["token_ids"]), block_size=32, seed=seed_of("tiny"))
    assert row["block_hashes"] == [f"{block_hash:016x}" for block_hash in hashes]
    [change] = row["changes"]
    assert change == {"rule": "attribution_line", "path": "system[0]", "before": f"{HEADER}\n", "after": ""}
    assert row["warnings"] == []


def test_every_preamble_case_is_one_line_of_explain(shared: Path) -> None:
    """What a case must keep is in the prompt, what it must drop is not; equal cases have equal tokens."""
    file = shared / "preamble_cases.jsonl"
    cases = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    code, rows = explained(str(file))
    assert code == 0
    by_id = {case["id"]: row for case, row in zip(cases, rows, strict=True)}
    for case in cases:
        text = by_id[case["id"]]["canonical_text"]
        assert [words for words in case["must_keep"] if words not in text] == [], case["id"]
        assert [words for words in case["must_drop"] if words.lower() in text.lower()] == [], case["id"]
        if case.get("relation") == "equal":
            assert by_id[case["id"]]["token_ids"] == by_id[case["same_prefix_as"]]["token_ids"], case["id"]


def test_a_session_file_gives_a_line_per_request(shared: Path) -> None:
    """Without a context limit, both head layouts."""
    session = str(shared / "client_sessions" / "cc_2.1.332_repo_prompt_1.json")
    for template in ("system-first", "tools-first"):
        code, rows = explained(session, "--template", template, "--block-size", "16")
        assert (code, len(rows), {row["block_size"] for row in rows}) == (0, 3, {16})
        assert len(rows[-1]["block_hashes"]) == rows[-1]["tokens"] // 16
        assert rows[0]["block_hashes"][:-1] == rows[1]["block_hashes"][: len(rows[0]["block_hashes"]) - 1]


def test_a_request_that_cannot_be_read_has_its_error_in_its_place(tmp_path: Path) -> None:
    """Exit code 1; the others are still explained."""
    code, rows = explained(written(tmp_path, BODY, '{"model": ', {"model": "m", "messages": []}, BODY))
    assert code == 1
    assert ["error" in row for row in rows] == [False, True, True, False]
    assert "at least one message" in rows[2]["error"]


@pytest.mark.parametrize(
    ("body", "api", "warning"),
    [
        ({"model": "m", "prompt": "Hi"}, "completions", None),
        ({"model": "m", "prompt": ["Hi", "Ho"]}, "completions", "1 further prompts are not shown"),
        ({"model": "m", "prompt": [5, 6, 7]}, "completions", None),
        ({"model": "m", "input": "Hi"}, "responses", None),
        (
            {"model": "m", "messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "Hi"}]},
            "chat",
            None,
        ),
        ({**BODY, "unheard_of": 1}, "messages", "unheard_of: not followed"),
    ],
)
def test_every_protocol_is_explained_and_what_is_not_followed_is_a_warning(
    tmp_path: Path, body: dict[str, Any], api: str, warning: str | None
) -> None:
    """The protocol is guessed."""
    code, [row] = explained(written(tmp_path, body))
    assert (code, row["api"]) == (0, api)
    assert (not row["warnings"]) if warning is None else any(warning in text for text in row["warnings"])


def test_the_asked_protocol_is_used_whatever_the_body_looks_like(tmp_path: Path) -> None:
    """Chat has no `system` field: it is not followed there."""
    _, [row] = explained(written(tmp_path, {k: BODY[k] for k in ("model", "messages")}), "--api", "chat")
    assert row["api"] == "chat"


def test_people_get_the_changes_and_the_prompt_in_words(tmp_path: Path) -> None:
    """Without --json."""
    result = CliRunner().invoke(app, ["explain", written(tmp_path, BODY, "nonsense")])
    assert result.exit_code == 1
    assert "attribution_line at system[0]" in result.output
    assert "<|im_start|>user\né" in result.output
    assert "cannot be read as messages" in result.output


@pytest.mark.anyio
async def test_a_running_cluster_says_how_its_replicas_stand(tmp_path: Path, service: Service) -> None:
    """With --url; one that does not answer, or refuses the model, is one sentence."""
    file = written(tmp_path, {**BODY, "model": "tiny"})
    code, [row] = await asyncio.to_thread(explained, file, "--url", service.url)
    assert (code, [replica["replica"] for replica in row["replicas"]]) == (0, [REPLICA])
    other = await asyncio.to_thread(CliRunner().invoke, app, ["explain", written(tmp_path, BODY), "--url", service.url])
    assert "is not served here" in str(other.exception)
    gone = await asyncio.to_thread(CliRunner().invoke, app, ["explain", file, "--url", "http://127.0.0.1:9"])
    assert "no cluster answers there" in str(gone.exception)


def test_a_replicas_cost_is_said_part_by_part() -> None:
    """What is nothing goes unsaid; the tokens that are waited for are named."""
    score = Score("r1", 1.75, 640, 9_000, ahead_tokens=4_096, wait_s=0.5, compute_s=1.0, others_s=0.25)
    assert standing_words(score._asdict()) == (
        "replica r1: 640 tokens cached, cost 1750.0 ms: wait for 4096 of 9000 tokens before it 500.0 ms, "
        "its own computing 1000.0 ms, delay of those who follow 250.0 ms"
    )
    assert standing_words(Score("r1", 0.0, 0, 0)._asdict()) == "replica r1: 0 tokens cached, cost 0.0 ms"
