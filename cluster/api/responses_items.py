"""Items of a Responses input to turns: messages, reasoning, calls and their results. Ids never get further."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cluster.api.body import media_type_of
from cluster.api.responses_tools import flat_name
from cluster.prompt.conversation import Media, Message, Text, Thinking, ToolCall, ToolResult
from router.errors import InvalidRequest
from router.limits import MAX_BLOCKS_PER_MESSAGE, MAX_HINT_CHARS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.prompt.conversation import Block, ResultBlock, Role

_TEXTS: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"})
# What tools that run elsewhere left in a conversation: no model here has said or read it.
_HOSTED: Final = frozenset(
    {"additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "compaction",
     "compaction_trigger", "computer_call", "computer_call_output", "configuration_update", "file_search_call",
     "image_generation_call", "mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools", "program",
     "program_output", "shell_call", "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call"}
)  # fmt: skip
_SEAL: Final = "kvist1:"


class _Audio(msgspec.Struct):
    format: str = ""


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_data: str | None = None
    input_audio: _Audio | None = None


class _Action(msgspec.Struct):
    command: list[str] = []


class Item(msgspec.Struct):
    """Any item; what a type has beside these fields is skipped unread."""

    type: str = "message"
    role: str | None = None
    content: str | list[_Part] | None = None
    summary: list[_Part] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    action: _Action | None = None
    output: str | list[_Part] | None = None


class Turns(NamedTuple):
    """What the items say, in their order, and names of those that were passed over."""

    messages: tuple[Message, ...]
    ignored: tuple[str, ...]


def turns_of(items: Sequence[Item]) -> Turns:
    """Neighbouring items of an answer make one assistant message, neighbouring results one user message.

    Raises `InvalidRequest` that says where.
    """
    reader = _Reader()
    for i, item in enumerate(items):
        reader.read(item, f"input[{i}]")
    return Turns(tuple(reader.messages()), tuple(sorted(reader.ignored)))


def sealed(text: str) -> str:
    """Reasoning as `encrypted_content`. It hides nothing: it is the client's own conversation, which it keeps for us,
    so that no state is needed to read it back word for word."""
    return _SEAL + base64.b64encode(text.encode()).decode()


def unsealed(content: str) -> str | None:
    """What `sealed` was given; None for content from elsewhere."""
    if not content.startswith(_SEAL):
        return None
    try:
        return base64.b64decode(content.removeprefix(_SEAL), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


class _Open(NamedTuple):
    """A message that may still grow. `kind` tells results from what users say."""

    kind: str
    role: Role
    path: str
    blocks: list[Block]


class _Reader:
    def __init__(self) -> None:
        self._open: list[_Open] = []
        self.ignored: set[str] = set()

    def messages(self) -> Sequence[Message]:
        return [Message(one.role, tuple(one.blocks), one.path) for one in self._open]

    def read(self, item: Item, path: str) -> None:
        """The next item."""
        match item.type:
            case "message":
                self._message(item, path)
            case "reasoning":
                self._reasoning(item, path)
            case "function_call" | "custom_tool_call" | "local_shell_call":
                self._add("answer", "assistant", path, [_call(item, path)])
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                self._add("results", "user", path, [_result(item, path)])
            case "item_reference":
                raise InvalidRequest(f"{path}: items are not kept here to be referred to; send the item itself")
            case kind if kind in _HOSTED:
                self.ignored.add(f"input[].{kind}")
            case kind:
                raise InvalidRequest(f"{path}.type: `{kind[:MAX_HINT_CHARS]}` is not an item that is supported")

    def _message(self, item: Item, path: str) -> None:
        if item.content is None:
            raise InvalidRequest(f"{path}.content: field required")
        blocks = _content(item.content, f"{path}.content")
        match item.role:
            case "assistant":
                # An empty text is how some clients say that there was none beside a call.
                texts = [block for block in _texts(blocks, f"{path}.content") if block.text]
                self._add("answer", "assistant", path, texts)
            case "user":
                self._open.append(_Open("question", "user", path, list(blocks)))
            case "system" | "developer":
                self._open.append(_Open("order", "system", path, list(_texts(blocks, f"{path}.content"))))
            case role:
                raise InvalidRequest(f"{path}.role: `{(role or '')[:MAX_HINT_CHARS]}` is not a role")

    def _reasoning(self, item: Item, path: str) -> None:
        """The words themselves, wherever they are found; a summary only when there is nothing else."""
        said = _joined(item.content, f"{path}.content") or unsealed(item.encrypted_content or "")
        said = said or _joined(item.summary, f"{path}.summary")
        if said:
            self._add("answer", "assistant", path, [Thinking(said)])
        elif item.encrypted_content:
            self.ignored.add("input[].encrypted_content")

    def _add(self, kind: str, role: Role, path: str, blocks: Sequence[Block]) -> None:
        if not blocks:
            return
        if not self._open or self._open[-1].kind != kind:
            self._open.append(_Open(kind, role, path, []))
        self._open[-1].blocks.extend(blocks)


def _call(item: Item, path: str) -> ToolCall:
    """Arguments stay as they are, also those that are no JSON."""
    if item.call_id is None:
        raise InvalidRequest(f"{path}.call_id: field required")
    if item.type == "local_shell_call":
        command = (item.action or _Action()).command
        return ToolCall(item.call_id, "local_shell", _json({"command": command}))
    if item.name is None:
        raise InvalidRequest(f"{path}.name: field required")
    name = flat_name(item.namespace, item.name)
    if item.type == "custom_tool_call":
        return ToolCall(item.call_id, name, _json({"input": item.input or ""}))
    return ToolCall(item.call_id, name, item.arguments or "")


def _result(item: Item, path: str) -> ToolResult:
    call = item.call_id or (item.id if item.type == "local_shell_call_output" else None)
    if call is None:
        raise InvalidRequest(f"{path}.call_id: field required")
    if item.output is None:
        raise InvalidRequest(f"{path}.output: field required")
    return ToolResult(call, _content(item.output, f"{path}.output"))


def _content(content: str | list[_Part], path: str) -> tuple[ResultBlock, ...]:
    """The parts in their order; a string is one text."""
    if isinstance(content, str):
        return (Text(content),)
    if len(content) > MAX_BLOCKS_PER_MESSAGE:
        raise InvalidRequest(f"{path}: more than {MAX_BLOCKS_PER_MESSAGE} parts")
    return tuple(_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _part(part: _Part, path: str) -> Text | Media:
    if part.type in _TEXTS:
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise InvalidRequest(f"{path}.{'refusal' if part.type == 'refusal' else 'text'}: field required")
        return Text(text)
    match part.type:
        case "input_image":
            return Media("image", media_type_of(part.image_url or ""))
        case "input_file":
            return Media("document", media_type_of(part.file_data or ""))
        case "input_audio":
            kind = part.input_audio.format[:MAX_HINT_CHARS] if part.input_audio else ""
            return Media("audio", f"audio/{kind}" if kind else "")
    raise InvalidRequest(f"{path}: content of type `{part.type[:MAX_HINT_CHARS]}` is not supported")


def _texts(blocks: Sequence[ResultBlock], path: str) -> Sequence[Text]:
    for i, block in enumerate(blocks):
        if not isinstance(block, Text):
            raise InvalidRequest(f"{path}[{i}]: only text can stand here")
    return [block for block in blocks if isinstance(block, Text)]


def _joined(content: str | list[_Part] | None, path: str) -> str:
    """Our own reasoning comes back as one part."""
    return "\n".join(text.text for text in _texts(_content(content or "", path), path))


def _json(value: dict[str, str] | dict[str, list[str]]) -> str:
    return msgspec.json.encode(value).decode()
