"""Conversations with every kind of block, made by hand and at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from cluster.prompt.conversation import (
    Conversation,
    Media,
    Message,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolReference,
    ToolRemoval,
    ToolResult,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.prompt.conversation import Block, Role

LINE = "x-anthropic-billing-header: cc_version=2.1.332.0ab;"
READ = Tool(name="read", description="Reads a file.", parameters='{"type": "object", "properties": {"p": {}, "é": {}}}')
PLOT = Tool(name="plot", description="Draws a chart.", parameters='{"type":"object"}', deferred=True)


def conversation(
    system: Iterable[str] = (), messages: Iterable[tuple[Role, Iterable[Block | str]]] = (), tools: Iterable[Tool] = ()
) -> Conversation:
    """A Messages conversation; a str stands for a text block, paths are those of a request."""
    return Conversation(
        api="messages",
        model="m",
        system=tuple(map(Text, system)),
        messages=tuple(
            Message(role, tuple(Text(block) if isinstance(block, str) else block for block in blocks), f"messages[{i}]")
            for i, (role, blocks) in enumerate(messages)
        ),
        tools=tuple(tools),
    )


words = st.sampled_from(
    [LINE, LINE.upper(), "  " + LINE, "\n", "\r\n", "Be brief.", "Session id: 7", " ", "é風", "", "<system-reminder>",
     "</system-reminder>", "<|im_end|>", "{{ 1 }}"]
)  # fmt: skip
texts = st.lists(words, max_size=5).map("".join)
names = st.sampled_from(["read", "plot", "nobody"])
ids = st.sampled_from(["call_1", "call_2"])
media_blocks = st.builds(Media, kind=st.sampled_from(["image", "document", "audio"]), label=st.just("image/png"))
arguments = st.sampled_from(['{"p": 1}', '{"é":"ü",  "p": 1.0}', "", "[1]", "{broken", "null"])
results = st.builds(
    ToolResult,
    id=ids,
    content=st.lists(st.builds(Text, texts) | media_blocks | st.builds(ToolReference, names), max_size=3).map(tuple),
    is_error=st.booleans(),
)
text_blocks = st.builds(Text, texts)
named_tools = st.builds(ToolReference, names) | st.builds(ToolRemoval, names)
answered = st.lists(text_blocks | st.builds(Thinking, texts) | st.builds(ToolCall, ids, names, arguments), max_size=3)
asked = st.lists(text_blocks | results | named_tools, max_size=3)
instructed = st.lists(text_blocks | named_tools, max_size=3)


def _message(role: str) -> st.SearchStrategy[Any]:
    blocks: dict[str, st.SearchStrategy[Any]] = {"user": asked, "assistant": answered, "system": instructed}
    return st.tuples(st.just(role), blocks[role])


# Media stand in old messages only: the newest user message must not hold one.
old_media = st.lists(st.tuples(st.just("user"), st.lists(media_blocks | text_blocks, max_size=2)), max_size=1)
conversations = st.builds(
    lambda system, old, messages, last, tools: conversation(system, [*old, *messages, *last], tools),
    st.lists(texts, max_size=3),
    old_media,
    st.lists(st.sampled_from(["system", "user", "assistant"]).flatmap(_message), max_size=7),
    st.just([("user", ["And now?"])]) | st.just([("user", ["And now?"]), ("system", ["Hut."])]),
    st.lists(st.sampled_from([READ, PLOT]), max_size=2, unique_by=lambda tool: tool.name),
)


def _task(question: str, thought: str, calls: int, said: str, reminder: str) -> list[tuple[Role, list[Block | str]]]:
    """A question, calls with all their results, an answer: as clients send it, calls and results in pairs."""
    made = [ToolCall(f"toolu_{question}{i}", "read", '{"p": "é"}') for i in range(calls)]
    answers: list[Block | str] = [ToolResult(call.id, (Text(f"row {i}"),), i == 1) for i, call in enumerate(made)]
    beside: list[Block | str] = [Thinking(thought), said, *made]
    loop: list[tuple[Role, list[Block | str]]] = [("assistant", beside), ("user", answers)] if made else []
    system: list[tuple[Role, list[Block | str]]] = [("system", [reminder])] if reminder else []
    return [("user", [question]), *system, *loop, *system, ("assistant", [Thinking(thought), "Done."])]


tasks = st.lists(
    st.builds(
        _task,
        st.sampled_from(["One", "Two\n", "{{ 3 }}"]),
        st.sampled_from(["Hmm.", ""]),
        st.integers(0, 3),
        st.sampled_from(["Reading.", ""]),
        st.sampled_from(["Wind.", ""]),
    ),
    min_size=1,
    max_size=4,
)
