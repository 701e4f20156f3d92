"""What parsers want to know of a request: built once for a list of tools, and checked before it is used."""

from __future__ import annotations

import pytest

from cluster.models.parser_request import ChatRequests, chat_request
from cluster.prompt.conversation import Conversation, Tool, ToolChoice
from router.errors import InvalidRequest
from router.limits import MAX_REMEMBERED_TOOLS_CHARS, REMEMBERED_TOOL_LISTS

pytest.importorskip("vllm")
RANDOM = {"request_id"}  # that no parser reads
CHOICES = (
    ToolChoice(mode="auto"),
    ToolChoice(mode="any"),
    ToolChoice(mode="tool", name="f"),
    ToolChoice(parallel=False),
)


def conversation(*names: str, choice: ToolChoice = CHOICES[0], about: str = "", parameters: str = "{}") -> Conversation:
    """One that offers tools of these names."""
    tools = tuple(Tool(name=name, description=about, parameters=parameters) for name in names)
    return Conversation(api="chat", model="m", messages=(), tools=tools, tool_choice=choice)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("calls", [True, False])
def test_a_remembered_request_is_the_one_that_would_be_built(choice: ToolChoice, *, calls: bool) -> None:
    """For every choice, with calls and without, whatever was asked for before."""
    requests = ChatRequests()
    for other in CHOICES:
        requests.get(conversation("f", "g", choice=other), calls=True)
    for names in (("f", "g"), ("g", "f"), ("f",), ()):
        asked = conversation(*names, choice=choice)
        for _ in range(2):
            found = requests.get(asked, calls=calls)
            assert found.model_dump(exclude=RANDOM) == chat_request(asked, calls=calls).model_dump(exclude=RANDOM)


def test_what_one_parser_sets_no_other_sees() -> None:
    """Each has a copy."""
    requests, asked = ChatRequests(), conversation("f")
    requests.get(asked, calls=True).skip_special_tokens = False
    assert requests.get(asked, calls=True).skip_special_tokens


def test_tools_that_cannot_be_offered_are_refused_every_time() -> None:
    """Nothing is remembered of them."""
    requests = ChatRequests()
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            requests.get(conversation("f", parameters="[1]"), calls=True)
    assert not requests._known


def test_remembered_tool_lists_are_at_most_remembered_tool_lists() -> None:
    """REMEMBERED_TOOL_LISTS; the one that was not asked for longest goes."""
    requests = ChatRequests()
    requests.get(conversation("first"), calls=True)
    for number in range(REMEMBERED_TOOL_LISTS):
        requests.get(conversation(f"f{number}"), calls=True)
        requests.get(conversation("first"), calls=True)
    names = [key[1][0].name for key in requests._known]
    assert len(names) == REMEMBERED_TOOL_LISTS
    assert "first" in names
    assert "f0" not in names


def test_tools_of_more_than_max_remembered_tools_chars_are_not_remembered() -> None:
    """MAX_REMEMBERED_TOOLS_CHARS bounds what a list takes."""
    requests = ChatRequests()
    requests.get(conversation("f", about="x" * MAX_REMEMBERED_TOOLS_CHARS), calls=True)
    assert not requests._known
