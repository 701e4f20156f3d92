"""Where two prompts part: how many tokens they share, and what stands there in the request."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.prompt.conversation import Text, Thinking, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cluster.doctor.prompts import Prompt
    from cluster.prompt.conversation import Block, Conversation

EXCERPT_CHARS: Final = 48
LINE_CHARS: Final = 160  # of the line before the parting
NEEDLE_CHARS: Final = 200


class Parting(NamedTuple):
    """`shared_tokens` of the earlier prompt are the later one's beginning; `lost_tokens` of it are not. When some are,
    `path` is the place in the later request, with what each of them says there from the last equal words on."""

    shared_tokens: int
    lost_tokens: int
    path: str = ""
    earlier_excerpt: str = ""
    later_excerpt: str = ""


def part(earlier: Prompt, later: Prompt) -> Parting:
    """Compare. O(prompt) per comparison of memory, O(log prompt) comparisons."""
    shared = common_prefix(earlier.tokens, later.tokens)
    lost = len(earlier.tokens) - shared
    if lost == 0:
        return Parting(shared, 0)
    at = common_prefix(earlier.text, later.text)
    start = max(earlier.text.rfind("\n", 0, at) + 1, at - LINE_CHARS)
    excerpts = (prompt.text[start : at + EXCERPT_CHARS] for prompt in (earlier, later))
    return Parting(shared, lost, path_at(later, at), *excerpts)


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many elements both begin with."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def path_at(prompt: Prompt, at: int) -> str:
    """The part of the request that stands at character `at` of its prompt; "" where the template speaks before all."""
    starts = sorted(_starts(prompt.conversation, prompt.text))
    index = bisect_right(starts, at, key=lambda start: start[0]) - 1
    return starts[index][1] if index >= 0 else ""


def _starts(conversation: Conversation, text: str) -> Iterator[tuple[int, str]]:
    head = [(f"system[{i}]", block.text) for i, block in enumerate(conversation.system)]
    head += [(f"tools[{i}]", f'"{tool.name}"') for i, tool in enumerate(conversation.tools) if not tool.deferred]
    for path, needle in head:
        if (found := _find(text, needle, 0)) >= 0:
            yield found, path
    after = 0
    for message in conversation.messages:
        for i, block in enumerate(message.blocks):
            needle = _needle(block)
            if needle and (found := _find(text, needle, after)) >= 0:
                yield found, f"{message.path}.content[{i}]"
                after = found + 1


def _find(text: str, needle: str, start: int) -> int:
    shown = needle.strip()[:NEEDLE_CHARS]
    return text.find(shown, start) if shown else -1


def _needle(block: Block) -> str:
    match block:
        case Text(text) | Thinking(text):
            return text
        case ToolCall():
            return f'"{block.name}"'
        case ToolResult():
            return next((part.text for part in block.content if isinstance(part, Text)), "")
        case _:
            return ""
