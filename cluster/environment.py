"""What the environment may say to the command line."""

from __future__ import annotations

import os
from typing import Final

from router.errors import InvalidRequest

TRUE_WORDS: Final = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS: Final = frozenset({"0", "false", "no", "off"})


def keys_from_environment() -> list[str]:
    """The keys in KVIST_API_KEYS, parted by commas or spaces."""
    return os.environ.get("KVIST_API_KEYS", "").replace(",", " ").split()


def strip_from_environment() -> bool | None:
    """KVIST_STRIP_ANTHROPIC_PREAMBLE as a switch; None when it is not set. Raises `InvalidRequest` for another word."""
    word = os.environ.get("KVIST_STRIP_ANTHROPIC_PREAMBLE", "").strip().lower()
    if not word:
        return None
    if word in TRUE_WORDS | FALSE_WORDS:
        return word in TRUE_WORDS
    raise InvalidRequest(f"KVIST_STRIP_ANTHROPIC_PREAMBLE is {word!r}: say true or false")
