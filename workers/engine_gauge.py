"""What an engine holds now: its own counts where it reports them, ours for what it does not."""

from __future__ import annotations

import itertools
from typing import Any

from workers.engine import EngineLoad


class EngineGauge:
    """Requests in the engine, those still before their first token, and the engine's last word on its pool.

    The engine reports only while it produces output, so requests are counted here; on an idle engine all is free.
    """

    def __init__(self) -> None:
        self._prefilling: dict[int, int] = {}
        self._decoding: set[int] = set()
        self._tickets = itertools.count()
        self._usage = 0.0

    def __repr__(self) -> str:
        return f"<EngineGauge prefilling={len(self._prefilling)} decoding={len(self._decoding)}>"

    def enter(self, *, uncached_tokens: int) -> int:
        """A request goes in; the ticket stands for it."""
        ticket = next(self._tickets)
        self._prefilling[ticket] = max(1, uncached_tokens)
        return ticket

    def first_token(self, ticket: int) -> None:
        """Its prompt is computed. Later calls change nothing."""
        if self._prefilling.pop(ticket, None) is not None:
            self._decoding.add(ticket)

    def leave(self, ticket: int) -> None:
        """It has ended, in whatever way."""
        self._prefilling.pop(ticket, None)
        self._decoding.discard(ticket)

    def load(self, *, pool_blocks: int) -> EngineLoad:
        idle = not self._prefilling and not self._decoding
        return EngineLoad(
            running=len(self._decoding),
            waiting=len(self._prefilling),
            backlog_tokens=sum(self._prefilling.values()),
            free_blocks=pool_blocks if idle else round(pool_blocks * (1.0 - self._usage)),
        )

    def stat_logger(self, vllm_config: Any, engine_index: int = 0) -> Any:
        """A vLLM StatLogger that keeps the pool's usage here."""
        from vllm.v1.metrics.loggers import StatLoggerBase  # noqa: PLC0415 - vLLM is imported when the engine starts

        gauge = self

        class UsageLogger(StatLoggerBase):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                del vllm_config, engine_index

            def record(
                self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
            ) -> None:
                del iteration_stats, mm_cache_stats, engine_idx
                if scheduler_stats is not None:
                    gauge._usage = scheduler_stats.kv_cache_usage

            def log_engine_initialized(self) -> None:
                return None

        return UsageLogger(vllm_config, engine_index)
