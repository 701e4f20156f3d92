"""Recorded sessions of coding agents, as conversations of one model, grouped into what goes on from one another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cluster.api.messages import parse_count, parse_message

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.prompt.conversation import Conversation

SESSIONS = (
    "cc_2.1.114_session_a",
    "cc_2.1.114_session_b",
    "cc_2.1.332_count_tokens",
    "cc_2.1.332_repo_prompt_1",
    "cc_2.1.332_repo_prompt_2",
    "cc_2.1.332_thinking_tools",
    "cc_2.1.332_title_call",
    "cc_2.1.332_toolsearch_mcp",
    "cc_2.1.332_total_tokens",
)


def conversations_of(shared: Path, session: str) -> list[list[Conversation]]:
    """Lists of requests in which each goes on from the one before it. Title calls, token counts, other agents and what
    follows a compaction are lists of their own: they begin with another first message or another system text."""
    recorded = json.loads((shared / "client_sessions" / f"{session}.json").read_text(encoding="utf-8"))
    threads: dict[str, list[Conversation]] = {}
    for i, request in enumerate(recorded["requests"]):
        body = request["body"]
        if not isinstance(body, dict) or "messages" not in body:
            continue  # probes and model lists
        count = "count_tokens" in request["path"]
        parsed = (parse_count if count else parse_message)(json.dumps(body).encode())
        threads.setdefault(str(i) if count else _thread(body), []).append(parsed)
    return list(threads.values())


def _thread(body: dict[str, Any]) -> str:
    """What a client keeps the same as long as a conversation goes on; the first system block is the attribution line,
    and a content may be a text or a list of one."""
    first = body["messages"][0]["content"]
    texts = [first] if isinstance(first, str) else [block.get("text") for block in first]
    return json.dumps([[block["text"] for block in body["system"][1:]], texts])
