"""Anthropic Messages: images, documents, search results and browser states, as text where they hold text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from cluster.api.body import check_length, decode
from cluster.api.tools import json_object
from cluster.prompt.conversation import Media, Text
from router.errors import InvalidRequest
from router.limits import MAX_BLOCKS_PER_MESSAGE, MAX_HINT_CHARS

if TYPE_CHECKING:
    from collections.abc import Sequence

NULL: Final = msgspec.Raw(b"null")


class Block(msgspec.Struct):
    """A content block. Every field is read when its type asks for it: others may mean other things by the same name."""

    type: str
    text: msgspec.Raw = NULL
    source: msgspec.Raw = NULL
    title: msgspec.Raw = NULL
    context: msgspec.Raw = NULL
    content: msgspec.Raw = NULL
    thinking: msgspec.Raw = NULL
    id: msgspec.Raw = NULL
    name: msgspec.Raw = NULL
    input: msgspec.Raw = NULL
    tool_use_id: msgspec.Raw = NULL
    is_error: msgspec.Raw = NULL
    tool_name: msgspec.Raw = NULL
    tool: msgspec.Raw = NULL
    tabs: msgspec.Raw = NULL
    state_changes: msgspec.Raw = NULL


class _Source(msgspec.Struct):
    type: str
    media_type: str | None = None
    data: msgspec.Raw = NULL
    content: msgspec.Raw = NULL


class _Tab(msgspec.Struct):
    tab_id: str
    title: str = ""
    url: str = ""
    active: bool = False


def needed(raw: msgspec.Raw, kind: Any, path: str) -> Any:
    """The decoded field. Raises `InvalidRequest` when it is absent or null."""
    value = decode(raw, kind | None, path)
    if value is None:
        raise InvalidRequest(f"{path}: field required")
    return value


def blocks_in(raw: msgspec.Raw, path: str) -> tuple[Text, ...] | list[Block]:
    """Content that may be a string, which is one text, or counted blocks. Raises `InvalidRequest`."""
    check_length(raw, path, most=MAX_BLOCKS_PER_MESSAGE, of="blocks")
    content: str | list[Block] = needed(raw, str | list[Block], path)
    return (Text(content),) if isinstance(content, str) else content


def text(block: Block, path: str) -> tuple[Text, ...]:
    """A text block."""
    return (Text(needed(block.text, str, f"{path}.text")),)


def image(block: Block, path: str) -> tuple[Media, ...]:
    """By what kind it is; its bytes and addresses go no further."""
    source: _Source = needed(block.source, _Source, f"{path}.source")
    return (Media("image", _label(source)),)


def document(block: Block, path: str) -> tuple[Text | Media, ...]:
    """Title and context first, then its text if it holds text."""
    source: _Source = needed(block.source, _Source, f"{path}.source")
    return (*_said(block.title, f"{path}.title"), *_said(block.context, f"{path}.context"), *_body(source, path))


def search_result(block: Block, path: str) -> tuple[Text, ...]:
    """Title, source and texts."""
    content = blocks_in(block.content, f"{path}.content")
    texts = content if isinstance(content, tuple) else _texts(content, f"{path}.content")
    return (*_said(block.title, f"{path}.title"), *_said(block.source, f"{path}.source"), *texts)


def browser_state(block: Block, path: str) -> tuple[Text, ...]:
    """A line for each tab, and one for whatever happened."""
    tabs: list[_Tab] = needed(block.tabs, list[_Tab], f"{path}.tabs")
    changes: list[msgspec.Raw] = decode(block.state_changes, list[msgspec.Raw] | None, f"{path}.state_changes") or []
    lines = [f"[{tab.tab_id}] {tab.title} {tab.url}{' (active)' * tab.active}" for tab in tabs]
    lines += [json_object(change, f"{path}.state_changes[{i}]") for i, change in enumerate(changes)]
    return (Text("\n".join(["Browser tabs:", *lines])),)


def summary(block: Block, path: str) -> tuple[Text, ...]:
    """What a compaction kept of earlier turns, if it kept anything."""
    return _said(block.content, f"{path}.content")


def _said(raw: msgspec.Raw, path: str) -> tuple[Text, ...]:
    said: str | None = decode(raw, str | None, path)
    return (Text(said),) if said else ()


def _body(source: _Source, path: str) -> tuple[Text | Media, ...]:
    if source.type == "text":
        return (Text(needed(source.data, str, f"{path}.source.data")),)
    if source.type != "content":
        return (Media("document", _label(source)),)
    content = blocks_in(source.content, f"{path}.source.content")
    if isinstance(content, tuple):
        return content
    return tuple(
        part
        for i, block in enumerate(content)
        for part in (image if block.type == "image" else _text_only)(block, f"{path}.source.content[{i}]")
    )


def _texts(blocks: Sequence[Block], path: str) -> tuple[Text, ...]:
    return tuple(found for i, block in enumerate(blocks) for found in _text_only(block, f"{path}[{i}]"))


def _text_only(block: Block, path: str) -> tuple[Text, ...]:
    if block.type != "text":
        raise InvalidRequest(f"{path}: content of type `{block.type[:MAX_HINT_CHARS]}` is not supported here")
    return text(block, path)


def _label(source: _Source) -> str:
    return (source.media_type or "")[:MAX_HINT_CHARS]
