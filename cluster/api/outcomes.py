"""How requests end: each in exactly one named outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from router.errors import ClientError, DeadlinePassed, KvistBug, NoReplica, RateLimited, ReplicaError
from router.limits import MAX_HINT_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.prompt.conversation import Change

Outcome = Literal[
    "completed",
    "client_error",
    "rejected_capacity",
    "rejected_deadline",
    "cancelled",
    "failed_replica",
    "failed_internal",
]


class Report(msgspec.Struct, kw_only=True):
    """What is known of one request when it has ended: for metrics and logs, never for clients.

    `changes` are what the canonical rules did; `ignored` are names of body fields that Kvist does not follow, `betas`
    those that the client asked for in headers. Of the assistant's past turns `spliced_turns` are in the prompt as they
    were generated, `written_turns` as the template writes them. The prompt of a `warm` one grew from one that this
    ingress knew. Its generations were `failed_on` these replicas, in order; they were attempted again `retries` times
    before their first token and went on `resumes` times after it. `stages_s` is where its time went until the first
    token. `error` is what failed, in words for operators ("" for what did not).
    """

    request_id: str
    api: str
    outcome: Outcome = "failed_internal"
    status: int = 0
    model: str = ""
    tenant: str = ""
    client: str = ""
    session: str = ""
    replica: str = ""
    prompt_tokens: int = 0
    predicted_cached_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    spliced_turns: int = 0
    written_turns: int = 0
    warm: bool = False
    retries: int = 0
    resumes: int = 0
    failed_on: tuple[str, ...] = ()
    ttft_s: float | None = None
    duration_s: float = 0.0
    stages_s: dict[str, float] = msgspec.field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    ignored: tuple[str, ...] = ()
    betas: tuple[str, ...] = ()
    error: str = ""


def outcome_of(error: BaseException) -> Outcome:
    """Whose fault it was."""
    if isinstance(error, DeadlinePassed):
        return "rejected_deadline"
    if isinstance(error, NoReplica | RateLimited):
        return "rejected_capacity"
    if isinstance(error, ClientError):
        return "client_error"
    if isinstance(error, ReplicaError):
        return "failed_replica"
    return "failed_internal"


class OnceOnly:
    """A sink that takes one report; a second one is a `KvistBug`, and is not passed on."""

    def __init__(self, sink: Callable[[Report], None]) -> None:
        self._sink: Callable[[Report], None] | None = sink

    def __call__(self, report: Report) -> None:
        """Pass it on."""
        sink, self._sink = self._sink, None
        if sink is None:
            raise KvistBug(f"{report.request_id} ended twice, the second time as {report.outcome}")
        sink(report)


def words_of(error: BaseException) -> str:
    """The error's kind and text, at most `MAX_HINT_CHARS` and never empty."""
    kind, text = type(error).__name__, str(error)
    return (f"{kind}: {text}" if text else kind)[:MAX_HINT_CHARS]
