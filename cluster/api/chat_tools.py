"""What Chat Completions may answer with: tools and the choice among them, and the form of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from cluster.api import body as fields_of
from cluster.api.tools import check_name, schema
from cluster.prompt.conversation import OutputFormat, Tool, ToolChoice
from router.errors import InvalidRequest
from router.limits import MAX_HINT_CHARS, MAX_TOOLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.api.body import Fields

TOOL_FIELDS: Final = frozenset({"function_call", "functions", "parallel_tool_calls", "tool_choice", "tools"})
_EMPTY_OBJECT: Final = msgspec.Raw(b"{}")
_MODES: Final[dict[str, Literal["none", "auto", "any"]]] = {"none": "none", "auto": "auto", "required": "any"}
_ANY_OBJECT: Final = '{"type":"object"}'


class Tools(NamedTuple):
    """The tools, the choice among them, and names of wishes that are not followed."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    ignored: tuple[str, ...]


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: msgspec.Raw = _EMPTY_OBJECT
    strict: bool | None = None


class _Entry(msgspec.Struct):
    type: str
    function: _Function | None = None


class _Named(msgspec.Struct):
    name: str


class _AllowedTool(msgspec.Struct):
    type: str = "function"
    function: _Named | None = None


class _Allowed(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: list[_AllowedTool]


class _Choice(msgspec.Struct):
    """A named function, in today's form or (only `name`) in the older one; or a mode for some of the tools."""

    type: str = "function"
    function: _Named | None = None
    name: str = ""
    allowed_tools: _Allowed | None = None


class _Schema(msgspec.Struct):
    schema: msgspec.Raw = _EMPTY_OBJECT


class _Format(msgspec.Struct):
    type: str
    json_schema: _Schema | None = None


def tools_of(fields: Fields) -> Tools:
    """Functions only. Tools of other types are left out and reported, unless nothing is left.

    Raises `InvalidRequest`, also for a choice that no tool can meet.
    """
    for name in ("tools", "functions"):
        fields_of.check_length(fields.get(name), name, most=MAX_TOOLS, of="tools")
    entries: list[_Entry] = fields_of.optional(fields, "tools", list[_Entry]) or []
    legacy: list[_Function] = fields_of.optional(fields, "functions", list[_Function]) or []
    dropped = tuple(f"tools[] of type {entry.type[:MAX_HINT_CHARS]}" for entry in entries if entry.type != "function")
    if dropped and len(dropped) == len(entries):
        raise InvalidRequest(f"tools: only functions can be called here, not `{entries[0].type[:MAX_HINT_CHARS]}`")
    is_legacy = bool(legacy) and not entries
    if is_legacy:
        found = [_tool(function, f"functions[{i}]") for i, function in enumerate(legacy)]
    else:
        found = [_tool(e.function, f"tools[{i}]") for i, e in enumerate(entries) if e.type == "function"]
    first: dict[str, Tool] = {}
    for tool in found:
        first.setdefault(tool.name, tool)
    tools = tuple(first.values())
    twice = ("tools[] of a name that is taken",) if len(tools) < len(found) else ()
    choice, ignored = _choice(fields, "function_call" if is_legacy else "tool_choice", tools)
    return Tools(tools, choice, (*dict.fromkeys(dropped), *twice, *ignored))


def format_of(fields: Fields) -> OutputFormat | None:
    """The form that the text must have, None for any."""
    wanted: _Format | None = fields_of.optional(fields, "response_format", _Format)
    match wanted:
        case None | _Format(type="text"):
            return None
        case _Format(type="json_object"):
            return OutputFormat(schema=_ANY_OBJECT)
        case _Format(type="json_schema", json_schema=_Schema(raw)):
            return OutputFormat(schema=schema(raw, "response_format.json_schema.schema"))
        case _Format(type="json_schema"):
            raise InvalidRequest("response_format.json_schema: field required")
    raise InvalidRequest(f"response_format.type: `{wanted.type[:MAX_HINT_CHARS]}` is not supported")


def _tool(function: _Function | None, path: str) -> Tool:
    if function is None:
        raise InvalidRequest(f"{path}.function: field required")
    parameters = function.parameters if fields_of.asks_for_something(function.parameters) else _EMPTY_OBJECT
    return Tool(
        name=check_name(function.name, f"{path}.name"),
        description=function.description or "",
        parameters=schema(parameters, f"{path}.parameters"),
        strict=bool(function.strict),
    )


def _choice(fields: Fields, name: str, tools: Sequence[Tool]) -> tuple[ToolChoice, tuple[str, ...]]:
    """What the client allows, and what of it is not followed. The older `function_call` knew one call a turn."""
    wanted: str | _Choice | None = fields_of.optional(fields, name, str | _Choice)
    parallel: bool | None = fields_of.optional(fields, "parallel_tool_calls", bool)
    choice = ToolChoice(parallel=name == "tool_choice" if parallel is None else parallel)
    if wanted is None:
        return choice, ()
    if isinstance(wanted, str):
        if wanted not in _MODES:
            raise InvalidRequest(f"{name}: `{wanted[:MAX_HINT_CHARS]}` is not a choice")
        return _checked(replace(choice, mode=_MODES[wanted]), tools, name), ()
    if wanted.type == "allowed_tools":
        if wanted.allowed_tools is None:
            raise InvalidRequest(f"{name}.allowed_tools: field required")
        return _among(wanted.allowed_tools, choice, tools)
    if wanted.type != "function":
        raise InvalidRequest(f"{name}.type: `{wanted.type[:MAX_HINT_CHARS]}` is not supported")
    called = wanted.function.name if wanted.function is not None else wanted.name
    return _checked(replace(choice, mode="tool", name=called), tools, name), ()


def _among(allowed: _Allowed, choice: ToolChoice, tools: Sequence[Tool]) -> tuple[ToolChoice, tuple[str, ...]]:
    """The mode holds, and one required tool is a named one. That some tools may not be called is not enforced."""
    names = {entry.function.name for entry in allowed.tools if entry.function is not None}
    if allowed.mode == "required" and len(names) == 1:
        return _checked(replace(choice, mode="tool", name=names.pop()), tools, "tool_choice"), ()
    ignored = () if names.issuperset(tool.name for tool in tools) else ("tool_choice.allowed_tools",)
    return _checked(replace(choice, mode=_MODES[allowed.mode]), tools, "tool_choice"), ignored


def _checked(choice: ToolChoice, tools: Sequence[Tool], path: str) -> ToolChoice:
    if choice.mode == "any" and not tools:
        raise InvalidRequest(f"{path}: a call is required, but there are no tools")
    if choice.mode == "tool" and choice.name not in {tool.name for tool in tools}:
        raise InvalidRequest(f"{path}: there is no tool `{choice.name[:MAX_HINT_CHARS]}`")
    return choice
