"""What a run shows while it goes on: counts of everything, figures of the last seconds."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple

from load_tests.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Callable

    from load_tests.swarm.ledger import Entry

WINDOW_S: Final = 10.0
MAX_WINDOW: Final = 10_000
"""Entries kept for the figures of the window."""


class Snapshot(NamedTuple):
    """One moment. Rates and times are of the last WINDOW_S seconds; None where nothing ended."""

    now_s: float
    in_flight: int
    ended: int
    outcomes: dict[str, int]
    errors: dict[str, int]
    requests_per_s: float
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    hit_rate: float | None
    ideal_hit_rate: float | None


class Tally:
    """Counts what begins and ends; `keep` takes each entry. Invariant: in flight = sent - ended."""

    def __init__(self, keep: Callable[[Entry], None], now_s: Callable[[], float]) -> None:
        self._keep = keep
        self._now_s = now_s
        self._sent = 0
        self._ended = 0
        self._outcomes: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._recent: deque[Entry] = deque(maxlen=MAX_WINDOW)

    def __repr__(self) -> str:
        return f"<Tally {self._ended} of {self._sent} ended>"

    def sent(self) -> None:
        """A request begins."""
        self._sent += 1

    def ended(self, entry: Entry) -> None:
        """It came to its outcome."""
        self._ended += 1
        self._outcomes[entry.outcome] += 1
        if entry.error is not None:
            self._errors[entry.error] += 1
        self._recent.append(entry)
        self._keep(entry)

    def check_integrity(self) -> None:
        """Raise AssertionError when a request ended twice, or without beginning."""
        assert self._ended <= self._sent
        assert self._ended == self._outcomes.total()

    def snapshot(self) -> Snapshot:
        """O(window)."""
        now_s = self._now_s()
        while self._recent and self._recent[0].last_token_s < now_s - WINDOW_S:
            self._recent.popleft()
        ttfts = [entry.ttft_ms for entry in self._recent if entry.ttft_ms is not None]
        prompts = sum(entry.prompt_tokens or 0 for entry in self._recent)
        return Snapshot(
            now_s=now_s,
            in_flight=self._sent - self._ended,
            ended=self._ended,
            outcomes=dict(self._outcomes),
            errors=dict(self._errors),
            requests_per_s=len(self._recent) / min(WINDOW_S, max(now_s, 1.0)),
            ttft_p50_ms=percentile(ttfts, 50) if ttfts else None,
            ttft_p99_ms=percentile(ttfts, 99) if ttfts else None,
            hit_rate=sum(entry.cached_tokens or 0 for entry in self._recent) / prompts if prompts else None,
            ideal_hit_rate=sum(entry.ideal_tokens for entry in self._recent) / prompts if prompts else None,
        )
