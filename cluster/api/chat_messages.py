"""Messages of Chat Completions to the internal form: system text, turns, calls and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cluster.api import body as fields_of
from cluster.prompt.conversation import Media, Message, Text, Thinking, ToolCall, ToolResult
from router.errors import InvalidRequest
from router.limits import MAX_BLOCKS_PER_MESSAGE, MAX_HINT_CHARS, MAX_MESSAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.api.body import Fields
    from cluster.prompt.conversation import Block

# What a part may be, by whose message it stands in.
_INSTRUCTIONS: Final = frozenset({"text"})
_QUESTION: Final = frozenset({"text", "image_url", "input_audio", "file"})
_ANSWER: Final = frozenset({"text", "refusal"})
_RESULT: Final = frozenset({"text", "image_url", "file"})
_NULL: Final = msgspec.Raw(b"null")


class Turns(NamedTuple):
    """What the messages say, and names of what in them is not followed."""

    system: tuple[Text, ...]
    messages: tuple[Message, ...]
    ignored: tuple[str, ...]


class _Url(msgspec.Struct):
    url: str


class _Audio(msgspec.Struct):
    format: str = ""


class _File(msgspec.Struct):
    file_data: str | None = None


class _Part(msgspec.Struct):
    """A content part; what a type has beside these fields is skipped unread."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _Url | str | None = None
    input_audio: _Audio | None = None
    file: _File | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: str | None = None


class _Call(msgspec.Struct):
    id: str
    type: str = "function"
    function: _Function | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    function_call: _Function | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: msgspec.Raw = _NULL
    name: msgspec.Raw = _NULL


def turns_of(fields: Fields) -> Turns:
    """The conversation. Raises `InvalidRequest` that says where."""
    fields_of.check_length(fields.get("messages"), "messages", most=MAX_MESSAGES, of="messages")
    raw: list[_Message] = fields_of.required(fields, "messages", list[_Message])
    if not raw:
        raise InvalidRequest("messages: at least one message is required")
    reader = _Reader()
    for i, message in enumerate(raw):
        reader.read(message, f"messages[{i}]")
    named = any(message.role != "function" and fields_of.asks_for_something(message.name) for message in raw)
    return Turns(tuple(reader.system), tuple(reader.messages), ("messages[].name",) if named else ())


class _Reader:
    """Reads messages in order: the leading instructions are the system text, later ones stay where they are."""

    def __init__(self) -> None:
        self.system: list[Text] = []
        self.messages: list[Message] = []
        self._last_function = ""

    def read(self, message: _Message, path: str) -> None:
        """The next message."""
        match message.role:
            case "system" | "developer":
                blocks = _content(message, path, _INSTRUCTIONS)
                if self.messages:
                    self.messages.append(Message("system", blocks, path))
                else:
                    self.system += [block for block in blocks if isinstance(block, Text)]
            case "user":
                self.messages.append(Message("user", _content(message, path, _QUESTION), path))
            case "assistant":
                self.messages.append(Message("assistant", self._assistant(message, path), path))
            case "tool" | "function":
                self.messages.append(Message("user", (self._result(message, path),), path))
            case role:
                raise InvalidRequest(f"{path}.role: `{role[:MAX_HINT_CHARS]}` is not a role")

    def _assistant(self, message: _Message, path: str) -> tuple[Block, ...]:
        if fields_of.asks_for_something(message.audio):
            raise InvalidRequest(f"{path}.audio: audio answers are not supported")
        thought = message.reasoning_content or message.reasoning
        blocks: list[Block] = [Thinking(thought)] if thought else []
        calls = list(_calls(message.tool_calls or (), f"{path}.tool_calls"))
        if message.function_call is not None:
            # This older form has no ids; results of such calls follow at once.
            self._last_function = f"call_{path.removeprefix('messages[').removesuffix(']')}"
            function = message.function_call
            calls.append(ToolCall(self._last_function, function.name, function.arguments or ""))
        if message.content is not None or not (calls or blocks or message.refusal):
            blocks += _content(message, path, _ANSWER)
        if message.refusal:
            blocks.append(Text(message.refusal))
        # An empty text beside something else is how some clients say that there is none.
        if len(blocks) + len(calls) > 1:
            blocks = [block for block in blocks if block != Text("")]
        return (*blocks, *calls)

    def _result(self, message: _Message, path: str) -> ToolResult:
        call = self._last_function if message.role == "function" else message.tool_call_id
        if not call and message.role == "function":
            raise InvalidRequest(f"{path}.role: `function` needs a message with `function_call` before it")
        if call is None:
            raise InvalidRequest(f"{path}.tool_call_id: field required")
        return ToolResult(call, () if message.content is None else _content(message, path, _RESULT))


def _content(message: _Message, path: str, kinds: frozenset[str]) -> tuple[Text | Media, ...]:
    """The parts in their order; a string is one text. Raises `InvalidRequest` that names the first of another kind."""
    content = message.content
    if content is None:
        raise InvalidRequest(f"{path}.content: field required")
    if isinstance(content, str):
        return (Text(content),)
    if len(content) > MAX_BLOCKS_PER_MESSAGE:
        raise InvalidRequest(f"{path}.content: more than {MAX_BLOCKS_PER_MESSAGE} blocks")
    return tuple(_part(part, f"{path}.content[{i}]", kinds) for i, part in enumerate(content))


def _part(part: _Part, path: str, kinds: frozenset[str]) -> Text | Media:
    if part.type not in kinds:
        raise InvalidRequest(f"{path}: content of type `{part.type[:MAX_HINT_CHARS]}` is not supported here")
    match part:
        case _Part(type="text", text=str(text)) | _Part(type="refusal", refusal=str(text)):
            return Text(text)
        case _Part(type="image_url", image_url=_Url(url) | str(url)):
            return Media("image", fields_of.media_type_of(url))
        case _Part(type="input_audio", input_audio=_Audio(format=kind)):
            return Media("audio", f"audio/{kind[:MAX_HINT_CHARS]}" if kind else "")
        case _Part(type="file", file=_File(file_data=data)):
            return Media("document", fields_of.media_type_of(data or ""))
    raise InvalidRequest(f"{path}.{part.type}: field required")


def _calls(calls: Sequence[_Call], path: str) -> tuple[ToolCall, ...]:
    if len(calls) > MAX_BLOCKS_PER_MESSAGE:
        raise InvalidRequest(f"{path}: more than {MAX_BLOCKS_PER_MESSAGE} calls")
    return tuple(_call(call, f"{path}[{i}]") for i, call in enumerate(calls))


def _call(call: _Call, path: str) -> ToolCall:
    """Arguments stay as they are, also those that are no JSON."""
    if call.type != "function":
        raise InvalidRequest(f"{path}: calls of type `{call.type[:MAX_HINT_CHARS]}` are not supported")
    if call.function is None:
        raise InvalidRequest(f"{path}.function: field required")
    return ToolCall(call.id, call.function.name, call.function.arguments or "")
