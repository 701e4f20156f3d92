"""A call's arguments as they are generated: whether they can still become a JSON object, repaired where one reading
only makes sense."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal

from router.limits import MAX_ARGUMENT_DEPTH, MAX_ARGUMENT_NUMBER_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable

_Mode = Literal["start", "value", "first_value", "key", "first_key", "colon", "after", "string", "escape", "bare"]

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_SPACE: Final = re.compile(r"[ \t\r\n]+")
_BARE: Final = re.compile(r"[-+.0-9A-Za-z]+")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NUMBER_BEGUN: Final = re.compile(
    r"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE](?:[-+]?[0-9]*)?)?)?|[eE](?:[-+]?[0-9]*)?)?)?"
)
_LITERALS: Final = ("true", "false", "null")
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_SHORT_ESCAPES: Final = frozenset('"\\/bfnrt')
_CONTROLS: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_REPLACEMENT: Final = "\\ufffd"


class Arguments:
    """Reads one JSON object, in pieces of any size; all that `push` returned together is valid JSON once complete.

    Repaired: raw control characters in strings are escaped, backslashes that escape nothing are doubled, half a
    surrogate pair becomes U+FFFD. Bounded: nesting and the length of a number. O(text), no recursion.
    """

    def __init__(self) -> None:
        self.state: Literal["open", "complete", "broken"] = "open"
        self.surplus = ""  # what came behind the end
        self._mode: _Mode = "start"
        self._open: list[str] = []
        self._is_key = False
        self._held = ""  # of an escape, a number or a literal whose end has not come
        self._high = ""  # the first half of a surrogate pair

    def push(self, text: str) -> str:
        """What is certain now; nothing any more when the object is complete or broken."""
        out: list[str] = []
        steps: dict[_Mode, Callable[[str, int, list[str]], int]] = {
            "string": self._string,
            "escape": self._escape,
            "bare": self._bare,
        }
        at = 0
        while at < len(text) and self.state == "open":
            at = steps.get(self._mode, self._structure)(text, at, out)
        if self.state == "complete":
            self.surplus += text[at:]
        return "".join(out)

    def _structure(self, text: str, at: int, out: list[str]) -> int:
        if space := _SPACE.match(text, at):
            if self._mode != "start":
                out.append(space[0])
            return space.end()
        char, mode = text[at], self._mode
        if char == '"' and mode in ("key", "first_key", "value", "first_value"):
            self._is_key, self._mode = "key" in mode, "string"
        elif char in "{[" and (mode in ("value", "first_value") or (mode == "start" and char == "{")):
            self._enter(char)
        elif char in "}]" and self._may_close(char):
            self._leave()
        elif char == ":" and mode == "colon":
            self._mode = "value"
        elif char == "," and mode == "after":
            self._mode = "key" if self._open[-1] == "{" else "value"
        elif mode in ("value", "first_value") and _BARE.match(char):
            self._mode = "bare"
            return at
        else:
            self.state = "broken"
        if self.state != "broken":
            out.append(char)
        return at + 1

    def _enter(self, bracket: str) -> None:
        if len(self._open) >= MAX_ARGUMENT_DEPTH:
            self.state = "broken"
            return
        self._open.append(bracket)
        self._mode = "first_key" if bracket == "{" else "first_value"

    def _may_close(self, bracket: str) -> bool:
        if bracket == "}":
            return self._mode == "first_key" or (self._mode == "after" and self._open[-1] == "{")
        return self._mode == "first_value" or (self._mode == "after" and self._open[-1] == "[")

    def _leave(self) -> None:
        self._open.pop()
        self._mode = "after"
        if not self._open:
            self.state = "complete"

    def _string(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        if char == "\\":
            self._mode, self._held = "escape", char
            return at + 1
        self._end_pair(out)
        if plain := _PLAIN.match(text, at):
            out.append(plain[0])
            return plain.end()
        if char == '"':
            self._mode = "colon" if self._is_key else "after"
            out.append(char)
        else:
            out.append(_CONTROLS.get(char) or f"\\u{ord(char):04x}")
        return at + 1

    def _escape(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        if self._held == "\\" and char in _SHORT_ESCAPES:
            self._end_pair(out)
            out.append(self._held + char)
            self._mode, self._held = "string", ""
        elif (self._held == "\\" and char == "u") or (self._held != "\\" and char in _HEX):
            self._held += char
            if len(self._held) == len(_REPLACEMENT):
                self._unit(self._held, out)
                self._mode, self._held = "string", ""
        else:  # no escape after all: its backslash is meant as it stands
            self._end_pair(out)
            out.append("\\" + self._held)
            self._mode, self._held = "string", ""
            return at
        return at + 1

    def _unit(self, escape: str, out: list[str]) -> None:
        """One UTF-16 unit; halves of pairs go out together or not at all."""
        code = int(escape.removeprefix("\\u"), base=16)
        if 0xDC00 <= code < 0xE000:
            out.append(self._high + escape if self._high else _REPLACEMENT)
            self._high = ""
            return
        self._end_pair(out)
        if 0xD800 <= code < 0xDC00:
            self._high = escape
        else:
            out.append(escape)

    def _end_pair(self, out: list[str]) -> None:
        if self._high:
            out.append(_REPLACEMENT)
            self._high = ""

    def _bare(self, text: str, at: int, out: list[str]) -> int:
        """A number or a literal: it has no end of its own, so it goes out when something else follows."""
        if more := _BARE.match(text, at):
            self._held += more[0]
            begun = _NUMBER_BEGUN.fullmatch(self._held) and len(self._held) <= MAX_ARGUMENT_NUMBER_CHARS
            if not begun and not any(word.startswith(self._held) for word in _LITERALS):
                self.state = "broken"
            return more.end()
        if self._held in _LITERALS or _NUMBER.fullmatch(self._held):
            out.append(self._held)
            self._held, self._mode = "", "after"
        else:
            self.state = "broken"
        return at
