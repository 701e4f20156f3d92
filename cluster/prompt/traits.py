"""What a chat template can do, found out by asking it: probes are rendered once, when the model loads.

A template that refuses, drops or garbles what a probe holds cannot do it; `cluster.prompt.fitting` then says the same
in a way that it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cluster.prompt.conversation import Tool, ToolCall
from cluster.prompt.template import Ask, Form, Turn
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.prompt.template import ChatTemplate

EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")  # least first

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

    accepts_system: bool = True  # at the head, and it stays there
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
    form: Form = Form()
    text_arguments: bool = True  # also where `form` says objects
    efforts: tuple[str, ...] = EFFORTS  # of those, the ones that are taken


def probe(template: ChatTemplate) -> Traits:
    """Ask a template. Raises `InvalidRequest` when it does not even render what a user says."""
    for content_parts in (False, True):
        asking = _Probe(template, Form(content_parts=content_parts))
        if asking.is_heard():
            return asking.traits()
    raise InvalidRequest("what a user says is not in the prompt")


class _Probe:
    def __init__(self, template: ChatTemplate, form: Form) -> None:
        self._template = template
        self._form = form

    def is_heard(self) -> bool:
        """Whether a user's words reach the prompt."""
        return self._shows([_USER], _ASKED)

    def traits(self) -> Traits:
        thoughtful = _ANSWER._replace(reasoning=_THOUGHT)
        plain = Traits(
            form=self._form,
            efforts=self._efforts(),
            accepts_system=self._shows([Turn("system", _RULE), _USER, _ANSWER, _NEXT], _RULE, _ASKED, _AGAIN),
            accepts_inline_system=self._shows([_USER, _ANSWER, _NEXT, Turn("system", _RULE)], _AGAIN, _RULE),
            needs_alternation=not (
                self._shows([_USER, _NEXT], _ASKED, _AGAIN)
                and self._shows([_USER, _ANSWER, Turn("assistant", _RULE), _NEXT], _ANSWERED, _RULE, _AGAIN)
            ),
            keeps_thinking=any(
                _tells(self._text([_USER, thoughtful, _NEXT], thinking=thinking), _THOUGHT, _ANSWERED)
                for thinking in ("default", "on")
            ),
            thinking_switch=self._text([_USER], thinking="on") != self._text([_USER], thinking="off"),
        )
        found = self._call_form()
        return plain._replace(supports_tools=False) if found is None else self._tool_traits(plain, *found)

    def _efforts(self) -> tuple[str, ...]:
        """A template that writes any word was trained on the three that all know."""
        if _tells(self._text([_USER], effort=_VALUE), _VALUE):
            return ("low", "medium", "high")
        return tuple(effort for effort in EFFORTS if self._text([_USER], effort=effort) is not None)

    def _call_form(self) -> tuple[Form, str] | None:
        """The first form in which a call survives, and an id that is taken; None when there is none."""
        listed = self._text([_USER], tools=(_tool(),))
        if not (_tells(listed, _TOOL) and _tells(listed, _ABOUT)):
            return None
        for call_id in (_LONG_ID, _SHORT_ID):
            for null_content in (False, True):
                for form in self._forms(null_content=null_content):
                    text = self._text(_called(call_id), form=form, tools=(_tool(),))
                    if _tells(text, _ASKED, _TOOL, _KEY, _VALUE, _RESULT) and _unquoted(text):
                        return form, call_id
        return None

    def _forms(self, *, null_content: bool) -> list[Form]:
        parts = self._form.content_parts
        return [Form("object", null_content, parts), Form("text", null_content, parts)]

    def _tool_traits(self, plain: Traits, form: Form, call_id: str) -> Traits:
        self._form = form
        first, second = _call(call_id, _VALUE), _call(call_id[:-1] + "z", f"{_VALUE}2")
        calls = _called(call_id)
        both = [_USER, calls[1]._replace(calls=(first, second)), calls[2], calls[2]._replace(call_id=second.id)]
        beside = [_USER, calls[1]._replace(content=_ANSWERED), calls[2]]
        reasoned = [_USER, calls[1]._replace(content=_ANSWERED, reasoning=_THOUGHT), calls[2]]
        worded = [_USER, calls[1]._replace(calls=(ToolCall(call_id, _TOOL, _VALUE),)), calls[2]]
        text_beside_calls = self._shows(beside, _ANSWERED, _VALUE)
        return plain._replace(
            accepts_user_after_tool=self._shows([*calls, _NEXT], _RESULT, _AGAIN),
            parallel_calls=self._shows(both, _VALUE, f"{_VALUE}2"),
            text_beside_calls=text_beside_calls,
            thinking_beside_calls=not text_beside_calls or self._shows(reasoned, _ANSWERED, _VALUE),
            renders_call_ids=_tells(self._text(calls), call_id),
            short_call_ids=call_id == _SHORT_ID,
            form=form,
            text_arguments=self._shows(worded, _TOOL, _VALUE),
        )

    def _shows(self, turns: Sequence[Turn], *words: str) -> bool:
        """Whether all of `words` are rendered, in this order."""
        return _tells(self._text(turns), *words)

    def _text(self, turns: Sequence[Turn], **asked: Any) -> str | None:
        """What is rendered; None where that is refused."""
        try:
            return self._template.render(turns, Ask(**{"form": self._form, **asked}))
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
    """Not JSON inside of JSON, nor another language's way to write an object (as some templates write their tools)."""
    called = (text or "").partition(_ASKED)[2]
    return f'\\"{_KEY}' not in called and f"'{_KEY}'" not in called
