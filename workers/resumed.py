"""What Kvist's engine and the scheduler inside it call the beginning of an answer that another engine generated."""

from __future__ import annotations

from typing import Final

RESUMED: Final = "kvist_resumed_tokens"
"""In a request's extra arguments: how many of its prompt's last tokens those are."""
