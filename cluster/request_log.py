"""What is kept of a request when it has ended: one log line, without prompt text, and its numbers."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from cluster.status_metrics import increments
from router.limits import MAX_HINT_CHARS, MAX_LOGGED_LINES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cluster.api.outcomes import Report
    from cluster.ray_metrics import RayMetrics

logger = logging.getLogger("ray.serve")


def recorder(metrics: RayMetrics, known_models: Collection[str]) -> Callable[[Report], None]:
    """A sink for `build_app`: called once per request, at its end."""

    def record(report: Report) -> None:
        metrics.add(increments(report, known_models=known_models))
        logger.info(line_of(report))

    return record


def line_of(report: Report) -> str:
    """One JSON object. Of what canonical rules removed it keeps attribution lines, which are the client's own and never
    a user's words; of everything else the rule's name only."""
    attribution = [change.before[:MAX_HINT_CHARS] for change in report.changes if change.rule == "attribution_line"][
        :MAX_LOGGED_LINES
    ]
    fields = {
        "request": report.request_id,
        "api": report.api,
        "outcome": report.outcome,
        "status": report.status,
        "model": report.model,
        "tenant": report.tenant,
        "client": report.client,
        "session": report.session,
        "replica": report.replica,
        "prompt_tokens": report.prompt_tokens,
        "predicted_cached_tokens": report.predicted_cached_tokens,
        "cached_tokens": report.cached_tokens,
        "output_tokens": report.output_tokens,
        "spliced_turns": report.spliced_turns,
        "written_turns": report.written_turns,
        "warm": report.warm,
        "retries": report.retries,
        "resumes": report.resumes,
        "failed_on": report.failed_on,
        "ttft_s": report.ttft_s,
        "duration_s": report.duration_s,
        "stages_ms": {stage: round(duration_s * 1e3, 3) for stage, duration_s in report.stages_s.items()},
        "rules": sorted({change.rule for change in report.changes}),
        "attribution": attribution,
        "ignored": report.ignored,
        "betas": report.betas,
        "error": report.error[:MAX_HINT_CHARS],
    }
    return json.dumps(fields)
