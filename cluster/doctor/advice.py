"""What to do about a parting: the rule that heals it, or what the client or the operator can set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.doctor.parting import Parting
    from cluster.prompt.conversation import Conversation


class Cause(NamedTuple):
    """Something seen at a parting, and what helps."""

    seen: re.Pattern[str]
    advice: str


# Looked for in the excerpts, on both sides.
CAUSES: Final = (
    Cause(
        re.compile(r"(?i)x-anthropic-billing-header"),
        "attribution line: the rule strip_anthropic_preamble, or CLAUDE_CODE_ATTRIBUTION_HEADER=0 at the client",
    ),
    Cause(
        re.compile(r"<total_tokens>"),
        "token reminders: the rule inline_system, or CLAUDE_CODE_TOTAL_TOKENS_REMINDER=off at the client",
    ),
    Cause(
        re.compile(r"(?i)\b(current branch|recent commits|git status)\b"),
        "git state: CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS=1 at the client",
    ),
    Cause(re.compile(r"\b\d{4}-\d{2}-\d{2}T\d{2}:\d{2}"), "a time stamp: a pattern in volatile_lines, or its hook"),
    Cause(re.compile(r"(?i)\b(today'?s date|current date)\b"), "the date: it changes once a day"),
    Cause(
        re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
        "an id that is new each time: a pattern in volatile_lines, or the client's template",
    ),
    Cause(re.compile(r"/home/|/Users/|[A-Z]:\\\\"), "a user's own folder: prompts of other users part here"),
)
RULE_ADVICE: Final = {
    "strip_anthropic_preamble": "the attribution line leaves the system text",
    "volatile_lines": "the operator's volatile lines leave the system text",
    "equivalent_forms": "equal contents in different forms become one",
    "leading_system": "system messages before the first answer join the system text",
    "inline_system": "system messages stay where they were said",
    "deferred_tools": "deferred tools stay out of the tool list",
    "keep_thinking": "the template keeps the reasoning of past turns",
}


def advice_for(kind: str, before: Parting, after: Parting, needed: list[str]) -> list[str]:
    """What heals the parting without rules, then what might heal what is left with them."""
    said = [f"rule {name}: {RULE_ADVICE[name]}" for name in needed]
    for parting in (before, after):
        if kind == "session" and not parting.path.startswith(("system", "tools")):
            said.append("the sessions' own words begin here, as they should")
        elif parting.lost_tokens:
            said += _seen(parting)
    return list(dict.fromkeys(said))


def tool_changes(earlier: Conversation, later: Conversation) -> str:
    """How the listed tools differ, "" when they do not."""
    old = {tool.name: tool for tool in earlier.tools if not tool.deferred}
    new = {tool.name: tool for tool in later.tools if not tool.deferred}
    if list(old) != list(new):
        added, gone = [*(new.keys() - old.keys())], [*(old.keys() - new.keys())]
        if not added and not gone:
            return "the tools are the same in another order"
        return f"tools added: {', '.join(sorted(added)) or 'none'}; gone: {', '.join(sorted(gone)) or 'none'}"
    changed = [name for name in new if new[name] != old[name]]
    return f"tools described differently: {', '.join(changed)}" if changed else ""


def _seen(parting: Parting) -> Iterator[str]:
    around = f"{parting.earlier_excerpt}\n{parting.later_excerpt}"
    known = [cause.advice for cause in CAUSES if cause.seen.search(around)]
    yield from known
    if known:
        return
    if parting.path.startswith("tools"):
        yield "the tool list changed: keep it stable at the client (ENABLE_TOOL_SEARCH=false, fixed MCP servers)"
    elif parting.path.startswith("system"):
        yield "the system text changed: if the change says nothing, a pattern in volatile_lines removes it"
    else:
        yield "an earlier turn came in another form: exact turns heal the model's own words, others are the client's"
