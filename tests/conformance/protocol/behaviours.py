"""Every behaviour, in the order of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.protocol import attribution, counting, edges, history, hostile, streams, tools

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Behaviour

GROUPS: dict[str, tuple[Behaviour, ...]] = {
    "Attribution line in the system text": attribution.BEHAVIOURS,
    "Token counts": counting.BEHAVIOURS,
    "Conversations": history.BEHAVIOURS,
    "Tools": tools.BEHAVIOURS,
    "Streams and endings": streams.BEHAVIOURS,
    "Around the answers": edges.BEHAVIOURS,
    "Hostile and unknown": hostile.BEHAVIOURS,
}
ALL: tuple[Behaviour, ...] = tuple(behaviour for group in GROUPS.values() for behaviour in group)
