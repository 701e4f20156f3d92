"""Tools for a template that knows none: the list as system text, calls and results as text in tags.

The tags are those that most open models were trained on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster.prompt.json_text import arguments_text, dumps, function_of
from cluster.prompt.template import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.prompt.conversation import Tool, ToolCall

TOLD_PARSER: Final = "hermes"  # vLLM's name of what reads such answers
_HEAD: Final = "You can call these functions. Each line between the tags describes one, as JSON:\n<tools>"
_TAIL: Final = (
    "</tools>\n\nTo call one, answer with its name and arguments as JSON between tags of their own:\n"
    '<tool_call>\n{"name": "the function", "arguments": {"the parameter": "its value"}}\n</tool_call>'
)


def tools_as_text(tools: Sequence[Tool]) -> str:
    """What a system text says of tools; nothing when there are none."""
    if not tools:
        return ""
    return "\n".join([_HEAD, *(dumps({"type": "function", "function": function_of(tool)}) for tool in tools), _TAIL])


def without_tool_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Calls stand in the text of their turn; results that follow each other are one user's turn."""
    said: list[Turn] = []
    results: list[str] = []
    for turn in turns:
        if turn.role == "tool":
            results.append(f"<tool_response>\n{turn.content}\n</tool_response>")
            continue
        if results:
            said.append(Turn("user", "\n".join(results)))
            results = []
        said.append(_called_in_text(turn))
    return [*said, Turn("user", "\n".join(results))] if results else said


def _called_in_text(turn: Turn) -> Turn:
    if not turn.calls:
        return turn
    parts = [turn.content, *map(call_text, turn.calls)]
    return turn._replace(content="\n".join(filter(None, parts)), calls=())


def call_text(call: ToolCall) -> str:
    """One call between its tags."""
    return f'<tool_call>\n{{"name": {dumps(call.name)}, "arguments": {arguments_text(call.arguments)}}}\n</tool_call>'
