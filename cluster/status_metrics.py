"""What operators' monitoring sees: replicas as `kvist status` shows them, and how requests ended, as named numbers.

One table, `CATALOGUE`, says what exists. `samples` makes the replicas' numbers from statuses, `increments` a request's
from its report. Sending them is the shell's part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cluster.api.outcomes import Report
    from router.replicas import ReplicaStatus

Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One metric: its name, what it says, its labels, a histogram's bounds. A counter's samples are totals since the
    replica joined."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...] = ()


class Sample(NamedTuple):
    """One number of one metric. `labels` are in the order of the metric's."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


REPLICA: Final = ("model", "replica")
ROUTABLE: Final = Metric("kvist_replica_routable", "gauge", "1 while the replica's lease holds", REPLICA)
FENCED: Final = Metric("kvist_replica_fenced", "gauge", "1 while its blocks get no credit", REPLICA)
BLOCKS: Final = Metric("kvist_index_blocks", "gauge", "Blocks shown, by tier", (*REPLICA, "tier"))
SILENCE: Final = Metric("kvist_feed_silence_seconds", "gauge", "Time since its last frame", REPLICA)
BEHIND: Final = Metric("kvist_feed_behind_frames", "gauge", "Frames heard of and not applied", REPLICA)
BAD: Final = Metric("kvist_feed_bad_messages", "counter", "Malformed messages", REPLICA)
SKIPPED: Final = Metric("kvist_relay_skipped_events", "counter", "Engine events that could not be used", REPLICA)
TRANSITIONS: Final = Metric(
    "kvist_feed_events", "counter", "Transitions and repairs of its stream, by name", (*REPLICA, "event")
)
PREDICTED: Final = Metric("kvist_cached_tokens_predicted", "gauge", "Predicted, last minutes", REPLICA)
ACTUAL: Final = Metric("kvist_cached_tokens_actual", "gauge", "Counted by the engine, last minutes", REPLICA)
BACKLOG: Final = Metric("kvist_backlog_tokens", "gauge", "Prompt tokens before a new request", REPLICA)
RUNNING: Final = Metric("kvist_running_requests", "gauge", "Requests that the engine decodes", REPLICA)
WAITING: Final = Metric("kvist_waiting_requests", "gauge", "Requests before their first token", REPLICA)
HELD: Final = Metric("kvist_held_sessions", "gauge", "New sessions that wait while live ones fill caches", ("model",))
REQUESTS: Final = Metric("kvist_requests", "counter", "Requests by how they ended", ("model", "api", "outcome"))
MOVES: Final = Metric(
    "kvist_moves",
    "counter",
    "Generations whose replica failed and that went on at another: attempted again, or resumed after their first token",
    ("model", "kind"),
)
RULES: Final = Metric("kvist_canonical_changes", "counter", "What canonical rules changed", ("model", "rule"))
TURNS: Final = Metric(
    "kvist_past_turns", "counter", "Past turns of the assistant: spliced as generated, or written", ("model", "form")
)
IGNORED: Final = Metric(
    "kvist_ignored", "counter", "What clients asked for and Kvist does not follow: fields, betas", ("model", "kind")
)
PROMPT: Final = Metric("kvist_prompt_tokens", "counter", "Prompt tokens of all requests", ("model",))
PROMPTS: Final = Metric(
    "kvist_prompts",
    "counter",
    "Prompts: warm ones grew from one that this ingress knew, cold ones were made from their first byte on",
    ("model", "form"),
)
# Most stages of a warm request take less than a millisecond; a prefill takes seconds.
BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
STAGE: Final = Metric(
    "kvist_stage_seconds", "histogram", "Where requests spend their time, by stage", ("model", "stage"), BOUNDS_S
)
CACHED: Final = Metric("kvist_cached_tokens", "counter", "Those that engines found in cache", ("model",))

CATALOGUE: Final = (
    ROUTABLE,
    FENCED,
    BLOCKS,
    SILENCE,
    BEHIND,
    BAD,
    SKIPPED,
    TRANSITIONS,
    PREDICTED,
    ACTUAL,
    BACKLOG,
    RUNNING,
    WAITING,
    HELD,
    REQUESTS,
    MOVES,
    RULES,
    TURNS,
    IGNORED,
    PROMPTS,
    STAGE,
    PROMPT,
    CACHED,
)


def samples(statuses: Iterable[ReplicaStatus]) -> Iterator[Sample]:
    """Every number of every replica. O(replicas)."""
    for status in statuses:
        labels = (status.model, status.replica)
        yield Sample(ROUTABLE, labels, float(status.routable))
        yield Sample(FENCED, labels, float(status.fenced))
        for tier, blocks in status.blocks.items():
            yield Sample(BLOCKS, (*labels, tier), blocks)
        yield Sample(SILENCE, labels, status.silence_s)
        yield Sample(BEHIND, labels, status.behind_frames)
        yield Sample(BAD, labels, status.bad_messages)
        yield Sample(SKIPPED, labels, status.skipped_events)
        for event, count in status.counters.items():
            yield Sample(TRANSITIONS, (*labels, event), count)
        yield Sample(PREDICTED, labels, status.predicted_cached_tokens)
        yield Sample(ACTUAL, labels, status.actual_cached_tokens)
        yield Sample(BACKLOG, labels, status.backlog_tokens)
        yield Sample(RUNNING, labels, status.running)
        yield Sample(WAITING, labels, status.waiting)


def held_samples(held: Mapping[str, int]) -> Iterator[Sample]:
    """Sessions that are held, by model."""
    for model, sessions in held.items():
        yield Sample(HELD, (model,), sessions)


def increments(report: Report, *, known_models: Collection[str]) -> Iterator[Sample]:
    """What one ended request adds to counters and histograms.

    A name that no model has is not a label: clients choose it."""
    model = report.model if report.model in known_models else "unknown"
    yield Sample(REQUESTS, (model, report.api, report.outcome), 1)
    yield Sample(MOVES, (model, "retry"), report.retries)
    yield Sample(MOVES, (model, "resume"), report.resumes)
    for change in report.changes:
        yield Sample(RULES, (model, change.rule), 1)
    yield Sample(TURNS, (model, "spliced"), report.spliced_turns)
    yield Sample(TURNS, (model, "written"), report.written_turns)
    yield Sample(IGNORED, (model, "field"), len(report.ignored))
    yield Sample(IGNORED, (model, "beta"), len(report.betas))
    if report.prompt_tokens:
        yield Sample(PROMPTS, (model, "warm" if report.warm else "cold"), 1)
    for stage, duration_s in report.stages_s.items():
        yield Sample(STAGE, (model, stage), duration_s)
    if report.ttft_s is not None:
        yield Sample(STAGE, (model, "ttft"), report.ttft_s)
    yield Sample(PROMPT, (model,), report.prompt_tokens)
    yield Sample(CACHED, (model,), report.cached_tokens)
