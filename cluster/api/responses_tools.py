"""What a Responses request may be answered with: tools, as functions that a model can be shown, and the way back to the
client's own names; the choice among them; the form of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from cluster.api import body as fields_of
from cluster.api.tools import check_count, check_name, schema
from cluster.prompt.conversation import OutputFormat, Tool, ToolChoice
from router.errors import InvalidRequest
from router.limits import MAX_HINT_CHARS, MAX_TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cluster.api.body import Fields

_NULL: Final = msgspec.Raw(b"null")
_JOINT: Final = "__"
_EMPTY_OBJECT: Final = msgspec.Raw(b"{}")
_ANY_OBJECT: Final = '{"type":"object"}'
_MODES: Final[dict[str, Literal["none", "auto", "any"]]] = {"none": "none", "auto": "auto", "required": "any"}
_FREE_FORM: Final = '{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}'


class Tools(NamedTuple):
    """What the model may call, and names of what is not offered to it."""

    tools: tuple[Tool, ...]
    ignored: tuple[str, ...]


class Form(NamedTuple):
    """The form that the text must have, None for any; and names of wishes that are not followed."""

    form: OutputFormat | None
    ignored: tuple[str, ...]


class Choice(NamedTuple):
    """What the client allows, and names of wishes that are not followed."""

    choice: ToolChoice
    ignored: tuple[str, ...]


class _Grammar(msgspec.Struct):
    """The `format` of a free-form tool."""

    syntax: str | None = None
    definition: str | None = None


class _Format(msgspec.Struct):
    """The form of the answer's text."""

    type: str = "text"
    schema: msgspec.Raw = _NULL


class _TextConfig(msgspec.Struct):
    format: _Format | None = None
    verbosity: str | None = None


class _Tool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = _NULL
    strict: bool | None = None
    format: _Grammar | None = None
    tools: msgspec.Raw = _NULL


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[_Choice] | None = None


def flat_name(namespace: str | None, name: str) -> str:
    """The one name by which a model calls a tool of a namespace."""
    return f"{namespace}{_JOINT}{name}" if namespace else name


def own_name(tool: Tool) -> str:
    """The client's name of a tool, without its namespace."""
    return tool.name.removeprefix(f"{tool.namespace}{_JOINT}") if tool.namespace else tool.name


def tools_of(fields: Fields) -> Tools:
    """Functions, those of namespaces, and free-form tools; of two of one name the first. Tools that run elsewhere are
    left out.

    Raises `InvalidRequest` that says where.
    """
    fields_of.check_length(fields.get("tools"), "tools", most=MAX_TOOLS, of="tools")
    raw: list[_Tool] = fields_of.optional(fields, "tools", list[_Tool]) or []
    found: list[Tool] = []
    ignored: dict[str, None] = {}
    for i, entry in enumerate(raw):
        match entry.type:
            case "function" | "custom":
                found.append(_tool(entry, f"tools[{i}]"))
            case "namespace":
                found += _nested(entry, f"tools[{i}]")
            case kind:
                ignored[f"tools[] of type {kind[:MAX_HINT_CHARS]}"] = None
    check_count(found, "tools")
    tools: dict[str, Tool] = {}
    for tool in found:
        if tools.setdefault(tool.name, tool) is not tool:
            ignored["tools[] of a name that is taken"] = None
    return Tools(tuple(tools.values()), tuple(ignored))


def choice_of(fields: Fields, tools: Sequence[Tool]) -> Choice:
    """Raises `InvalidRequest` for a tool that cannot be called."""
    raw: str | _Choice = fields_of.optional(fields, "tool_choice", str | _Choice) or "auto"
    parallel = fields_of.optional(fields, "parallel_tool_calls", bool)
    choice, ignored = (_mode(raw), ()) if isinstance(raw, str) else _chosen(raw)
    if choice.mode == "any" and not tools:
        raise InvalidRequest("tool_choice: `required` needs a tool that can be called")
    if choice.mode == "tool" and choice.name not in {tool.name for tool in tools}:
        raise InvalidRequest(f"tool_choice: there is no tool `{choice.name[:MAX_HINT_CHARS]}`")
    return Choice(msgspec.structs.replace(choice, parallel=parallel is not False), ignored)


def format_of(fields: Fields) -> Form:
    """Raises `InvalidRequest` for a form that cannot be asked for."""
    config: _TextConfig = fields_of.optional(fields, "text", _TextConfig) or _TextConfig()
    ignored = ("text.verbosity",) if config.verbosity not in (None, "medium") else ()
    match config.format:
        case None | _Format(type="text"):
            return Form(None, ignored)
        case _Format(type="json_object"):
            return Form(OutputFormat(schema=_ANY_OBJECT), ignored)
        case _Format(type="json_schema", schema=raw):
            return Form(OutputFormat(schema=schema(raw, "text.format.schema")), ignored)
        case _Format(type=kind):
            raise InvalidRequest(f"text.format.type: `{kind[:MAX_HINT_CHARS]}` is not supported")


def _tool(tool: _Tool, path: str, namespace: str = "", about: str = "") -> Tool:
    check_name(tool.name or "", f"{path}.name")
    parts = [about, tool.description or "", _grammar(tool.format)]
    parameters = tool.parameters if fields_of.asks_for_something(tool.parameters) else _EMPTY_OBJECT
    return Tool(
        name=check_name(flat_name(namespace, tool.name or ""), f"{path}.name"),
        description="\n".join(part for part in parts if part),
        parameters=_FREE_FORM if tool.type == "custom" else schema(parameters, f"{path}.parameters"),
        strict=bool(tool.strict),
        namespace=namespace,
        free_form=tool.type == "custom",
    )


def _nested(namespace: _Tool, path: str) -> Iterator[Tool]:
    """The namespace's description is meant for the model: it goes with each of its tools."""
    check_name(namespace.name or "", f"{path}.name")
    nested = f"{path}.tools"
    fields_of.check_length(namespace.tools, nested, most=MAX_TOOLS, of="tools")
    tools: list[_Tool] = fields_of.decode(namespace.tools, list[_Tool] | None, nested) or []
    for i, tool in enumerate(tools):
        if tool.type not in ("function", "custom"):
            raise InvalidRequest(f"{nested}[{i}].type: must be `function` or `custom`")
        yield _tool(tool, f"{nested}[{i}]", namespace.name or "", namespace.description or "")


def _grammar(form: _Grammar | None) -> str:
    """It is not enforced, but it says what the input has to look like."""
    if form is None or not form.definition:
        return ""
    return f"The input follows this grammar ({form.syntax or 'grammar'}):\n{form.definition}"


def _mode(mode: str) -> ToolChoice:
    if mode not in _MODES:
        raise InvalidRequest(f"tool_choice: `{mode[:MAX_HINT_CHARS]}` is not a choice")
    return ToolChoice(mode=_MODES[mode])


def _chosen(choice: _Choice) -> tuple[ToolChoice, tuple[str, ...]]:
    match choice.type:
        case "function" | "custom":
            if not choice.name:
                raise InvalidRequest("tool_choice.name: field required")
            return ToolChoice(mode="tool", name=flat_name(choice.namespace, choice.name)), ()
        case "allowed_tools":
            return _among(choice)
    raise InvalidRequest(f"tool_choice: tools of type `{choice.type[:MAX_HINT_CHARS]}` are not run here")


def _among(choice: _Choice) -> tuple[ToolChoice, tuple[str, ...]]:
    """The mode holds, and one required tool is a named one. All tools stay in the prompt whatever a turn allows, which
    keeps it warm; that some may not be called is not enforced."""
    allowed = [tool for tool in choice.tools or () if tool.type in ("function", "custom")]
    if choice.mode == "required" and len(allowed) == 1:
        return _chosen(allowed[0])
    return ToolChoice(mode="any" if choice.mode == "required" else "auto"), ("tool_choice.tools",)
