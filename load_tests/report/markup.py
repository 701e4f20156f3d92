"""Markup in which a text can never become a tag: plain strings are escaped, only what `tag` made is not."""

from __future__ import annotations

import math
import re
from html import escape
from typing import Final

from load_tests.report.limits import MAX_TEXT_CHARS

_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""What XML forbids, what UTF-8 cannot write, and what turns the direction of the text that follows."""


class Markup(str):
    """A string that is markup already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """`value` as text: unprintable characters replaced, cut to MAX_TEXT_CHARS, escaped."""
    if isinstance(value, Markup):
        return value
    plain = str(value)
    if len(plain) > MAX_TEXT_CHARS:
        plain = f"{plain[:MAX_TEXT_CHARS]}…"
    return Markup(escape(_UNPRINTABLE.sub("\ufffd", plain)))


def join(*parts: object) -> Markup:
    """One after the other; what is no markup is escaped."""
    return Markup("".join(map(text, parts)))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """One element. `class_` is written class, `stroke_width` stroke-width; attributes that are None are left out.
    Raises ValueError for numbers that are not finite: a picture shall never be drawn with them."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def number(value: float) -> str:
    """A coordinate, to a tenth. Raises ValueError when it is not finite."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is no coordinate")
    return (
        f"{value:.1f}".removesuffix(".0").replace("-0", "0") if abs(value) < 0.05 else f"{value:.1f}".removesuffix(".0")
    )


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    return escape(_UNPRINTABLE.sub("\ufffd", str(value)))
