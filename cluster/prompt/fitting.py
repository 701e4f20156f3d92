"""A conversation's turns said so that a template can take them: nothing is lost because a template refuses or drops it.

Every step looks only at what stands before and beside a turn, so what was rendered once is rendered the same in every
later request of the conversation.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import xxhash

from cluster.prompt.conversation import ToolCall
from cluster.prompt.json_text import dumps, object_of
from cluster.prompt.literal import NO_MARKS
from cluster.prompt.plain import join_lines
from cluster.prompt.template import Turn
from cluster.prompt.tool_text import tools_as_text, without_tool_turns
from cluster.prompt.traits import EFFORTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.prompt.literal import LiteralMarks
    from cluster.prompt.template import Ask, ChatTemplate
    from cluster.prompt.traits import Traits

_SHORT_ID: Final = re.compile(r"[A-Za-z0-9]{9}")


class FittedTemplate:
    """A `ChatTemplate` that takes any turns: `template`, asked in the ways that its `traits` allow.

    `marks` in what clients wrote get their seams, so only the template writes special tokens.
    """

    def __init__(
        self, template: ChatTemplate, traits: Traits, *, keep_thinking: bool = True, marks: LiteralMarks = NO_MARKS
    ) -> None:
        self.traits = traits
        self.marks = marks
        self._template = template
        self._keep_thinking = keep_thinking

    def render(self, turns: Sequence[Turn], ask: Ask) -> str:
        """See `cluster.prompt.template.ChatTemplate`."""
        traits = self.traits
        fitted = [self.marks.turn(turn) for turn in turns]
        ask = ask._replace(tools=tuple(map(self.marks.tool, ask.tools)))
        if not traits.supports_tools:
            fitted = with_system(without_tool_turns(fitted), tools_as_text(ask.tools))
            ask = ask._replace(tools=())
        fitted = fit(fitted, traits)
        effort = nearest_effort(ask.effort, traits.efforts)
        asked = ask._replace(keep_thinking=self._keep_thinking, form=traits.form, effort=effort)
        return self._template.render(fitted, asked)


def fit(turns: Sequence[Turn], traits: Traits) -> list[Turn]:
    """The turns as a template of these traits takes them. Linear."""
    fitted = list(turns)
    if not traits.text_arguments:
        fitted = [_with_object_arguments(turn) for turn in fitted]
    if traits.short_call_ids:
        fitted = [_with_short_ids(turn) for turn in fitted]
    if not (traits.parallel_calls and traits.text_beside_calls):
        fitted = one_call_a_turn(fitted, traits)
    if not traits.thinking_beside_calls:
        fitted = [_thought_aloud(turn) for turn in fitted]
    if not traits.accepts_system:
        fitted = system_in_first_user(fitted)
    if traits.needs_alternation or not traits.accepts_user_after_tool:
        fitted = merge_neighbours(fitted, traits)
    return fitted


def nearest_effort(effort: str, taken: Sequence[str]) -> str:
    """The word that a template takes for `effort`: the next one up, else the highest; none for an unknown one."""
    if effort not in EFFORTS or not taken:
        return ""
    above = [word for word in EFFORTS[EFFORTS.index(effort) :] if word in taken]
    return above[0] if above else taken[-1]


def with_system(turns: Sequence[Turn], text: str) -> list[Turn]:
    """`text` behind the system text; no text changes nothing."""
    if not text:
        return list(turns)
    if turns and turns[0].role == "system":
        return [turns[0]._replace(content=f"{turns[0].content}\n\n{text}"), *turns[1:]]
    return [Turn("system", text), *turns]


def system_in_first_user(turns: Sequence[Turn]) -> list[Turn]:
    """System text stands at the head of the first user's turn; that of later system turns is a user's."""
    if not turns or turns[0].role != "system":
        return [_as_user(turn) for turn in turns]
    head, rest = turns[0].content, [_as_user(turn) for turn in turns[1:]]
    if rest and rest[0].role == "user":
        return [rest[0]._replace(content=f"{head}\n\n{rest[0].content}"), *rest[1:]]
    return [Turn("user", head), *rest]


def one_call_a_turn(turns: Sequence[Turn], traits: Traits) -> list[Turn]:
    """Calls made together are made one after the other, each followed by its results; a text before them is a turn."""
    fitted: list[Turn] = []
    at = 0
    while at < len(turns):
        turn = turns[at]
        at += 1
        if not turn.calls:
            fitted.append(turn)
            continue
        end = next((i for i in range(at, len(turns)) if turns[i].role != "tool"), len(turns))
        fitted += _one_by_one(turn, turns[at:end], traits)
        at = end
    return fitted


def merge_neighbours(turns: Sequence[Turn], traits: Traits) -> list[Turn]:
    """Turns of one role become one; a user's turn that may not follow a tool's joins its text; a user begins."""
    groups: list[list[Turn]] = []
    last = "system"
    for turn in turns:
        if traits.needs_alternation and last == "system" and turn.role in ("assistant", "tool"):
            groups.append([Turn("user", "")])
        same = traits.needs_alternation and turn.role == last and turn.role in ("user", "assistant")
        after_tool = turn.role == "user" and last == "tool" and not traits.accepts_user_after_tool
        if same or after_tool:
            groups[-1].append(turn)
        else:
            groups.append([turn])
            last = turn.role
    return [_merged(group) for group in groups]


def _merged(group: Sequence[Turn]) -> Turn:
    if len(group) == 1:
        return group[0]
    return group[0]._replace(
        content=join_lines(turn.content for turn in group if turn.content),
        reasoning=join_lines(turn.reasoning for turn in group if turn.reasoning),
        calls=tuple(call for turn in group for call in turn.calls),
    )


def _one_by_one(turn: Turn, results: Sequence[Turn], traits: Traits) -> list[Turn]:
    groups = [turn.calls] if traits.parallel_calls else [(call,) for call in turn.calls]
    split: list[Turn] = []
    if turn.content and not traits.text_beside_calls and not traits.needs_alternation:
        split.append(turn._replace(calls=()))
        turn = turn._replace(content="", reasoning="")
    left = list(results)
    for calls in groups:
        split.append(turn._replace(calls=calls))
        turn = turn._replace(content="", reasoning="")
        ids = {call.id for call in calls}
        split += [result for result in left if result.call_id in ids]
        left = [result for result in left if result.call_id not in ids]
    return split + left


def _as_user(turn: Turn) -> Turn:
    return turn._replace(role="user") if turn.role == "system" else turn


def _thought_aloud(turn: Turn) -> Turn:
    """Thoughts and text beside calls are one text to such a template."""
    if not (turn.calls and turn.reasoning and turn.content):
        return turn
    return turn._replace(content=join_lines([turn.reasoning, turn.content]), reasoning="")


def _with_object_arguments(turn: Turn) -> Turn:
    if not turn.calls:
        return turn
    return turn._replace(calls=tuple(map(_object_call, turn.calls)))


def _object_call(call: ToolCall) -> ToolCall:
    if object_of(call.arguments) is not None:
        return call
    return ToolCall(call.id, call.name, dumps({"arguments": call.arguments}))


def _with_short_ids(turn: Turn) -> Turn:
    if turn.role == "tool":
        return turn._replace(call_id=_short(turn.call_id))
    return turn._replace(calls=tuple(ToolCall(_short(call.id), call.name, call.arguments) for call in turn.calls))


def _short(call_id: str) -> str:
    """Nine letters and digits that depend on the id alone; one that is so already was the model's own."""
    return call_id if _SHORT_ID.fullmatch(call_id) else xxhash.xxh3_64_hexdigest(call_id.encode())[:9]
