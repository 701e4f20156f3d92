"""Anthropic Messages: messages and their content blocks to the internal form.

Blocks that Kvist cannot use are left out of a conversation's history and named, as a session may have begun elsewhere.
In the newest user message they are refused: there the client wants something of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from cluster.api import messages_documents as documents
from cluster.api.body import decode, is_given
from cluster.api.call_ids import native
from cluster.api.messages_documents import NULL, Block, blocks_in, needed
from cluster.api.messages_tools import ToolEntry, tool_of
from cluster.api.tools import check_name, json_object
from cluster.prompt.conversation import Message, Text, Thinking, ToolCall, ToolReference, ToolRemoval, ToolResult
from router.errors import InvalidRequest
from router.limits import MAX_HINT_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cluster.prompt import conversation as form
    from cluster.prompt.conversation import ResultBlock, Role, Tool


class _Place(NamedTuple):
    """Where blocks stand: in words, what types are read there, and whether others are refused."""

    words: str
    types: frozenset[str]
    is_strict: bool = False


_SYSTEM_TEXT: Final = _Place("system text", frozenset({"text"}))
_RESULT: Final = _Place(
    "a tool result", frozenset({"text", "image", "document", "search_result", "tool_reference", "browser_state"})
)
_ROLES: Final[Mapping[str, _Place]] = {
    "user": _Place(
        "a user message",
        frozenset({"text", "image", "document", "search_result", "tool_result", "tool_reference", "compaction"}),
    ),
    "assistant": _Place("an assistant message", frozenset({"text", "thinking", "tool_use", "compaction"})),
    "system": _Place("a system message", frozenset({"text", "tool_reference", "tool_addition", "tool_removal"})),
}
_READ: Final = _RESULT.types.union(*(place.types for place in _ROLES.values()))
# They say nothing to a model, wherever they stand.
_SILENT: Final = frozenset({"fallback", "redacted_thinking"})


class RawMessage(msgspec.Struct):
    """A message; what it has beside these fields is skipped unread."""

    role: str
    content: msgspec.Raw = NULL


class _ToolChange(msgspec.Struct):
    type: str
    name: str | None = None
    definition: msgspec.Raw = NULL


class Reader:
    """Reads the messages of one request. `tools` grow by those defined within messages; `ignored` names what was left
    out."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.tools = dict(tools)
        self.ignored: dict[str, None] = {}
        self._readers: Final[dict[str, Callable[[Block, str], tuple[form.Block, ...]]]] = {
            "text": documents.text,
            "image": documents.image,
            "document": documents.document,
            "search_result": documents.search_result,
            "browser_state": documents.browser_state,
            "compaction": documents.summary,
            "thinking": _thinking,
            "tool_use": _call,
            "tool_reference": _reference,
            "tool_result": self._result,
            "tool_addition": self._addition,
            "tool_removal": self._removal,
        }

    def system(self, raw: msgspec.Raw) -> tuple[Text, ...]:
        """The system text: a string, or blocks of text. Raises `InvalidRequest`."""
        return cast("tuple[Text, ...]", tuple(self._blocks(raw, "system", _SYSTEM_TEXT)))

    def messages(self, raw: Sequence[RawMessage], *, first: int = 0) -> tuple[Message, ...]:
        """All messages in order, or those from number `first` on. Raises `InvalidRequest` that says where."""
        newest = max((i for i, message in enumerate(raw) if message.role == "user"), default=-1)
        return tuple(self._message(message, f"messages[{first + i}]", i == newest) for i, message in enumerate(raw))

    def _message(self, message: RawMessage, path: str, is_newest: bool) -> Message:  # noqa: FBT001 - one caller
        place = _ROLES.get(message.role)
        if place is None:
            raise InvalidRequest(f"{path}.role: `{message.role[:MAX_HINT_CHARS]}` is not a role")
        blocks = self._blocks(message.content, f"{path}.content", place._replace(is_strict=is_newest))
        return Message(cast("Role", message.role), tuple(blocks), path)

    def _blocks(self, raw: msgspec.Raw, path: str, place: _Place) -> Iterator[form.Block]:
        content = blocks_in(raw, path)
        if isinstance(content, tuple):
            yield from content
            return
        for i, block in enumerate(content):
            yield from self._block(block, f"{path}[{i}]", place)

    def _block(self, block: Block, path: str, place: _Place) -> tuple[form.Block, ...]:
        if block.type in place.types:
            return self._readers[block.type](block, path)
        kind = block.type[:MAX_HINT_CHARS]
        if block.type in _READ:
            raise InvalidRequest(f"{path}: content of type `{kind}` cannot stand in {place.words}")
        if place.is_strict and block.type not in _SILENT:
            raise InvalidRequest(f"{path}: content of type `{kind}` is not supported")
        self._leave_out(f"content of type {kind}")
        return ()

    def _result(self, block: Block, path: str) -> tuple[ToolResult]:
        content: tuple[ResultBlock, ...] = ()
        if is_given(block.content):
            content = cast("tuple[ResultBlock, ...]", tuple(self._blocks(block.content, f"{path}.content", _RESULT)))
        shown_id: str = needed(block.tool_use_id, str, f"{path}.tool_use_id")
        is_error: bool | None = decode(block.is_error, bool | None, f"{path}.is_error")
        return (ToolResult(native(shown_id), content, bool(is_error)),)

    def _addition(self, block: Block, path: str) -> tuple[ToolReference, ...]:
        """A tool named or defined here can be called from here on."""
        change: _ToolChange = needed(block.tool, _ToolChange, f"{path}.tool")
        if change.type == "tool_reference":
            return (ToolReference(check_name(change.name or "", f"{path}.tool.name")),)
        if change.type != "tool_definition":
            return self._leave_out(f"tool_addition of type {change.type[:MAX_HINT_CHARS]}")
        path = f"{path}.tool.definition"
        entry: ToolEntry = needed(change.definition, ToolEntry, path)
        tool = tool_of(entry, path)
        if tool is None:
            return self._leave_out(f"tool_addition of type {str(entry.type)[:MAX_HINT_CHARS]}")
        known = self.tools.get(tool.name)
        if known is None or known.deferred:  # the tool list stands at the prompt's head: it must not change
            self.tools[tool.name] = replace(tool, deferred=True)
        return (ToolReference(tool.name),)

    def _removal(self, block: Block, path: str) -> tuple[ToolRemoval, ...]:
        change: _ToolChange = needed(block.tool, _ToolChange, f"{path}.tool")
        if change.type != "tool_reference":
            return self._leave_out(f"tool_removal of type {change.type[:MAX_HINT_CHARS]}")
        return (ToolRemoval(check_name(change.name or "", f"{path}.tool.name")),)

    def _leave_out(self, what: str) -> tuple[()]:
        self.ignored[what] = None
        return ()


def _thinking(block: Block, path: str) -> tuple[Thinking, ...]:
    """Signatures are not looked at; reasoning whose text was not shown says nothing."""
    thought: str = needed(block.thinking, str, f"{path}.thinking")
    return (Thinking(thought),) if thought else ()


def _call(block: Block, path: str) -> tuple[ToolCall]:
    shown_id: str = needed(block.id, str, f"{path}.id")
    name: str = needed(block.name, str, f"{path}.name")
    arguments = json_object(block.input, f"{path}.input") if is_given(block.input) else "{}"
    return (ToolCall(native(shown_id), name, arguments),)


def _reference(block: Block, path: str) -> tuple[ToolReference]:
    return (ToolReference(needed(block.tool_name, str, f"{path}.tool_name")),)
