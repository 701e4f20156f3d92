"""Requests over which replicas die: after the second death nobody else is sent one, for a while.

The same request is told by a fingerprint of its prompt and of what is asked for. One that ran beside the culprit on
both replicas is taken for it too: better one typed error more than a third replica less.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from router.errors import KvistBug
from router.limits import MAX_SUSPECT_REQUESTS, QUARANTINE_DEATHS, QUARANTINE_S

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Suspicion(NamedTuple):
    deaths: Mapping[str, float]  # replica → when it died


class Quarantine:
    """Deaths by fingerprint, of the last QUARANTINE_S. At most MAX_SUSPECT_REQUESTS fingerprints, the oldest forgotten
    first. `now` is monotonic seconds. O(1) per call."""

    def __init__(self) -> None:
        self._suspicions: OrderedDict[int, _Suspicion] = OrderedDict()  # by the time of the last death

    def __repr__(self) -> str:
        return f"<Quarantine suspects={len(self._suspicions)}>"

    def __len__(self) -> int:
        return len(self._suspicions)

    def note(self, fingerprint: int, replica: str, now: float) -> None:
        """A replica died while it had this request."""
        known = self._suspicions.pop(fingerprint, _Suspicion({}))
        deaths = {name: at for name, at in known.deaths.items() if at > now - QUARANTINE_S} | {replica: now}
        self._suspicions[fingerprint] = _Suspicion(dict(list(deaths.items())[-QUARANTINE_DEATHS:]))
        while len(self._suspicions) > MAX_SUSPECT_REQUESTS:
            self._suspicions.popitem(last=False)

    def bars(self, fingerprint: int, now: float) -> bool:
        """Whether QUARANTINE_DEATHS replicas died over it, and the last of them less than QUARANTINE_S ago."""
        known = self._suspicions.get(fingerprint)
        if known is None:
            return False
        last = max(known.deaths.values())
        if last <= now - QUARANTINE_S:
            del self._suspicions[fingerprint]
            return False
        return len(known.deaths) >= QUARANTINE_DEATHS

    def check_integrity(self) -> None:
        """Raise `KvistBug` when more is kept than may be."""
        if len(self._suspicions) > MAX_SUSPECT_REQUESTS:
            raise KvistBug(f"{self!r}: too many")
        if any(not 1 <= len(known.deaths) <= QUARANTINE_DEATHS for known in self._suspicions.values()):
            raise KvistBug(f"{self!r}: a suspicion without deaths, or with too many")
