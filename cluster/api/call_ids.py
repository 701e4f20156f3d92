"""Ids of tool calls in a form that every client of Messages accepts, and back to the model's own.

Some model families write ids with characters that clients refuse, and their templates want to read them as they were.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

_ACCEPTED: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_MAPPED: Final = "toolu_x_"


def shown(native: str) -> str:
    """The id for clients: the model's own if they accept it, else one that `native` reads back."""
    if _ACCEPTED.match(native) and not native.startswith(_MAPPED):
        return native
    return _MAPPED + urlsafe_b64encode(native.encode()).decode().rstrip("=")


def native(shown_id: str) -> str:
    """The model's id of what a client returns; any other id is itself."""
    mapped = shown_id.removeprefix(_MAPPED)
    if mapped == shown_id:
        return shown_id
    try:
        found = urlsafe_b64decode(mapped + "=" * (-len(mapped) % 4)).decode()
    except ValueError:
        return shown_id
    return found if shown(found) == shown_id else shown_id
