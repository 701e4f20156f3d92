"""What a chat template can do, found out by asking it: probes are rendered once, when the model loads.

A template that refuses, drops or garbles what a probe holds cannot do it; `cluster.prompt.fitting` then says the same
in a way that it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cluster.prompt.conversation import Tool, ToolCall
from cluster.prompt.template import Ask, CallForm, Turn
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.prompt.template import ChatTemplate

# Words that no template writes itself.
_ASKED, _ANSWERED, _AGAIN, _RULE, _THOUGHT, _RESULT = (
    "kvistasked", "kvistanswered", "kvistagain", "kvistrule", "kvistthought", "kvistresult",
)  # fmt: skip
_TOOL, _ABOUT, _KEY, _VALUE = "kvisttool", "kvistabout", "kvistkey", "kvistvalue"
_LONG_ID, _SHORT_ID = "toolu_kvist0123456789abcd", "kvist0123"

_USER: Final = Turn("user", _ASKED)
_ANSWER: Final = Turn("assistant", _ANSWERED)
_NEXT: Final = Turn("user", _AGAIN)


class Traits(NamedTuple):
    """Of one template. The defaults are those of one that can do everything."""

    accepts_system: bool = True
    accepts_inline_system: bool = True
    needs_alternation: bool = False  # two turns of users, or of assistants, in a row are refused
    accepts_user_after_tool: bool = True
    supports_tools: bool = True  # lists tools, and renders calls and results
    parallel_calls: bool = True
    text_beside_calls: bool = True
    thinking_beside_calls: bool = True  # together with a text
    keeps_thinking: bool = True  # of turns before the last user's, with its keep switch on
    thinking_switch: bool = True  # `thinking` on or off makes a difference
    renders_call_ids: bool = False
    short_call_ids: bool = False  # only nine letters and digits are taken
    calls: CallForm = CallForm()
    text_arguments: bool = True  # also where `calls` says objects


def probe(template: ChatTemplate) -> Traits:
    """Ask a template. Raises `InvalidRequest` when it cannot even render one user's turn."""
    template.render([_USER], Ask())
    return _Probe(template).traits()


class _Probe:
    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def traits(self) -> Traits:
        plain = Traits(
            accepts_system=self._shows([Turn("system", _RULE), _USER], _RULE, _ASKED),
            accepts_inline_system=self._shows([_USER, _ANSWER, _NEXT, Turn("system", _RULE)], _AGAIN, _RULE),
            needs_alternation=not (
                self._shows([_USER, _NEXT], _ASKED, _AGAIN)
                and self._shows([_USER, _ANSWER, Turn("assistant", _RULE), _NEXT], _ANSWERED, _RULE, _AGAIN)
            ),
            keeps_thinking=self._shows([_USER, _ANSWER._replace(reasoning=_THOUGHT), _NEXT], _THOUGHT, _ANSWERED),
            thinking_switch=self._text([_USER], Ask(thinking="on")) != self._text([_USER], Ask(thinking="off")),
        )
        found = self._call_form()
        return plain._replace(supports_tools=False) if found is None else self._tool_traits(plain, *found)

    def _call_form(self) -> tuple[CallForm, str] | None:
        """The first form in which a call survives, and an id that is taken; None when there is none."""
        if not self._shows([_USER], _TOOL, _ABOUT, ask=Ask(tools=(_tool(),))):
            return None
        for call_id in (_LONG_ID, _SHORT_ID):
            for null_content in (False, True):
                for form in (CallForm("object", null_content), CallForm("text", null_content)):
                    text = self._text(_called(call_id), Ask(calls=form, tools=(_tool(),)))
                    if _tells(text, _ASKED, _TOOL, _KEY, _VALUE, _RESULT) and _unquoted(text):
                        return form, call_id
        return None

    def _tool_traits(self, plain: Traits, form: CallForm, call_id: str) -> Traits:
        ask = Ask(calls=form, tools=(_tool(),))
        first, second = _call(call_id, _VALUE), _call(call_id[:-1] + "z", f"{_VALUE}2")
        calls = _called(call_id)
        both = [_USER, calls[1]._replace(calls=(first, second)), calls[2], calls[2]._replace(call_id=second.id)]
        beside = [_USER, calls[1]._replace(content=_ANSWERED), calls[2]]
        reasoned = [_USER, calls[1]._replace(content=_ANSWERED, reasoning=_THOUGHT), calls[2]]
        worded = [_USER, calls[1]._replace(calls=(ToolCall(call_id, _TOOL, _VALUE),)), calls[2]]
        text_beside_calls = self._shows(beside, _ANSWERED, _VALUE, ask=ask)
        return plain._replace(
            accepts_user_after_tool=self._shows([*calls, _NEXT], _RESULT, _AGAIN, ask=ask),
            parallel_calls=self._shows(both, _VALUE, f"{_VALUE}2", ask=ask),
            text_beside_calls=text_beside_calls,
            thinking_beside_calls=not text_beside_calls or self._shows(reasoned, _ANSWERED, _VALUE, ask=ask),
            renders_call_ids=_tells(self._text(calls, ask), call_id),
            short_call_ids=call_id == _SHORT_ID,
            calls=form,
            text_arguments=self._shows(worded, _TOOL, _VALUE, ask=ask),
        )

    def _shows(self, turns: Sequence[Turn], *words: str, ask: Ask | None = None) -> bool:
        """Whether all of `words` are rendered, in this order."""
        return _tells(self._text(turns, ask or Ask()), *words)

    def _text(self, turns: Sequence[Turn], ask: Ask) -> str | None:
        try:
            return self._template.render(turns, ask)
        except InvalidRequest:
            return None


def _tool() -> Tool:
    schema = f'{{"type": "object", "properties": {{"{_KEY}": {{"type": "string"}}}}}}'
    return Tool(name=_TOOL, description=_ABOUT, parameters=schema)


def _call(call_id: str, value: str) -> ToolCall:
    return ToolCall(call_id, _TOOL, f'{{"{_KEY}": "{value}"}}')


def _called(call_id: str) -> list[Turn]:
    turn = Turn("assistant", "", calls=(_call(call_id, _VALUE),))
    return [_USER, turn, Turn("tool", _RESULT, call_id=call_id, name=_TOOL)]


def _tells(text: str | None, *words: str) -> bool:
    at = 0
    for word in words:
        at = -1 if text is None else text.find(word, at)
        if at < 0:
            return False
        at += len(word)
    return True


def _unquoted(text: str | None) -> bool:
    """Not JSON inside of JSON, nor another language's way to write an object."""
    return text is not None and f'\\"{_KEY}' not in text and f"'{_KEY}'" not in text
