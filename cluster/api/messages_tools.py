"""Anthropic Messages: the tools and the choice among them, thinking, and the form of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from cluster.api.body import check_length, is_given, optional
from cluster.api.tools import check_name, schema
from cluster.prompt.conversation import OutputFormat, Tool, ToolChoice
from router.errors import InvalidRequest
from router.limits import MAX_HINT_CHARS, MAX_TOOLS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cluster.api.body import Fields

_NULL: Final = msgspec.Raw(b"null")
_EFFORTS: Final = frozenset({"low", "medium", "high", "xhigh", "max"})
_REMEDY: Final = "it runs on its vendor's servers and is not served here; offer a tool with an `input_schema`"


class ToolEntry(msgspec.Struct):
    """An entry of `tools`. Those of a vendor have a `type` and no schema."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = _NULL
    strict: bool | None = None
    defer_loading: bool | None = None


class Offer(NamedTuple):
    """Tools that can be called, by name, and those of the vendor that cannot: their types, by name or type."""

    tools: dict[str, Tool]
    unserved: dict[str, str]

    @property
    def ignored(self) -> tuple[str, ...]:
        """What is left out, in words."""
        return tuple(dict.fromkeys(f"tools[] of type {kind[:MAX_HINT_CHARS]}" for kind in self.unserved.values()))


class Thought(NamedTuple):
    """What the client wants of reasoning; `is_hidden`: of its text nothing is shown."""

    mode: Literal["default", "on", "off"]
    is_hidden: bool
    ignored: tuple[str, ...]


class _Choice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    display: str | None = None
    budget_tokens: int | None = None


class _Format(msgspec.Struct):
    type: str
    schema: msgspec.Raw = _NULL


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: _Format | None = None


def offer_of(fields: Fields) -> Offer:
    """The entries of `tools`. Raises `InvalidRequest` for too many, for bad ones and for two of one name."""
    check_length(fields.get("tools"), "tools", most=MAX_TOOLS, of="tools")
    entries: list[ToolEntry] = optional(fields, "tools", list[ToolEntry]) or []
    offer = Offer({}, {})
    for i, entry in enumerate(entries):
        tool = tool_of(entry, f"tools[{i}]")
        if tool is None:
            offer.unserved[entry.name or str(entry.type)] = str(entry.type)
        elif tool.name in offer.tools:
            raise InvalidRequest(f"tools[{i}].name: two tools are called `{tool.name}`")
        else:
            offer.tools[tool.name] = tool
    return offer


def tool_of(entry: ToolEntry, path: str) -> Tool | None:
    """A tool that the client runs; None for one that its vendor would run. Raises `InvalidRequest`."""
    is_bare = not is_given(entry.input_schema)
    if is_bare and entry.type not in (None, "custom"):
        return None
    if is_bare:
        raise InvalidRequest(f"{path}.input_schema: field required")
    return Tool(
        name=check_name(entry.name or "", f"{path}.name"),
        description=entry.description or "",
        parameters=schema(entry.input_schema, f"{path}.input_schema"),
        deferred=bool(entry.defer_loading),
        strict=bool(entry.strict),
    )


def choice_of(fields: Fields, tools: Collection[str], unserved: Mapping[str, str]) -> ToolChoice:
    """The choice among `tools` (names). Raises `InvalidRequest` for one that nothing can meet."""
    wanted: _Choice | None = optional(fields, "tool_choice", _Choice)
    if wanted is None:
        return ToolChoice()
    name = (wanted.name or "") if wanted.type == "tool" else ""
    if name in unserved and name not in tools:
        raise InvalidRequest(
            f"tool_choice: `{name[:MAX_HINT_CHARS]}` is a `{unserved[name][:MAX_HINT_CHARS]}`: {_REMEDY}"
        )
    if wanted.type == "tool" and name not in tools:
        raise InvalidRequest(f"tool_choice.name: no tool is called `{name[:MAX_HINT_CHARS]}`")
    if wanted.type == "any" and not tools:
        kinds = ", ".join(f"`{kind[:MAX_HINT_CHARS]}`" for kind in list(unserved.values())[:1])
        raise InvalidRequest(f"tool_choice: {kinds}: {_REMEDY}" if kinds else "tool_choice: `any` needs tools")
    return ToolChoice(mode=wanted.type, name=name, parallel=not wanted.disable_parallel_tool_use)


def thought_of(fields: Fields) -> Thought:
    """Models think as much as they like: a budget is accepted, not followed."""
    wanted: _Thinking | None = optional(fields, "thinking", _Thinking)
    if wanted is None:
        return Thought("default", is_hidden=False, ignored=())
    ignored = () if wanted.budget_tokens is None else ("thinking.budget_tokens",)
    return Thought("off" if wanted.type == "disabled" else "on", is_hidden=wanted.display == "omitted", ignored=ignored)


def format_of(fields: Fields) -> tuple[OutputFormat | None, str, tuple[str, ...]]:
    """The form of the answer's text, the effort, and what is ignored. `output_format` is the older place of a form."""
    config: _OutputConfig = optional(fields, "output_config", _OutputConfig) or _OutputConfig()
    older: _Format | None = optional(fields, "output_format", _Format)
    path = "output_config.format" if config.format else "output_format"
    effort = config.effort or ""
    known = effort if effort in _EFFORTS else ""
    return _form(config.format or older, path), known, () if known == effort else ("output_config.effort",)


def _form(wanted: _Format | None, path: str) -> OutputFormat | None:
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        raise InvalidRequest(f"{path}.type: only `json_schema` is served")
    if not is_given(wanted.schema):
        raise InvalidRequest(f"{path}.schema: field required")
    return OutputFormat(schema=schema(wanted.schema, f"{path}.schema"))
