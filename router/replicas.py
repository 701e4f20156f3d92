"""What a replica says of itself, what operators are told of it, and how true the router's picture of it is."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from router.errors import WireError
from router.feed import State
from router.limits import ACCURACY_WINDOW_S, MAX_BLOCK_TOKENS, MAX_COUNT, MAX_NAME_BYTES, OVERSTATEMENT_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from router.feed import Feed

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_BYTES)]
Endpoint = Annotated[str, msgspec.Meta(pattern=r"^(tcp|ipc)://", max_length=MAX_NAME_BYTES)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]

NOTEWORTHY_TOKENS: Final = 10_000
NOTEWORTHY_SHARE: Final = 0.1


class DataEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a replica takes generations beside the Serve handle, and what both sides prove to know."""

    host: Name
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    secret: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]

    def __repr__(self) -> str:
        return f"DataEndpoint({self.host}:{self.port})"


class ReplicaInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replica's own account, published when it is ready. `replica` is Serve's unique id of it. What an `optimistic`
    one shows is an upper bound of what its engine will find. Without `data` it is reached through Serve's handle only;
    `data_fault` says why, when that was not wanted.

    The step rule is the engine's own: `step_tokens` at most per step (0: not told), `share_tokens` of them at most for
    one prompt while others are there (0: all of them, first come first served)."""

    replica: Name
    incarnation: Name
    model: Name
    block_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_TOKENS)]
    pool_blocks: Count
    max_model_len: Count
    events: Endpoint
    snapshots: Endpoint
    optimistic: bool = False
    step_tokens: Tokens = 0
    share_tokens: Tokens = 0
    data: DataEndpoint | None = None
    data_fault: str = ""

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any]) -> ReplicaInfo:
        """The account in a replica's metadata. Raises `WireError` for anything else."""
        try:
            return msgspec.convert(metadata, cls)
        except msgspec.ValidationError as error:
            raise WireError(f"replica metadata: {error}") from None

    def to_metadata(self) -> dict[str, Any]:
        """Plain data for `from_metadata` on the other side."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


class PromptBlocks(msgspec.Struct, frozen=True):
    """A prompt to place: its length, and its block hashes for each block size present. `session` is the client's name
    of the conversation, made unique among tenants; "" when it has none."""

    prompt_tokens: int
    hashes: Mapping[int, Sequence[int]]
    session: str = ""


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as operators see it. `running` and `waiting` are the engine's own gauge. The cached tokens are sums
    over the last minutes: predicted, and as counted by the engine. `overstated_tokens` is how much less than it shows
    an optimistic replica proved to find per prompt. `problems` says in words what is wrong."""

    replica: str
    model: str
    state: str
    incarnation: str
    routable: bool
    fenced: bool
    block_size: int
    pool_blocks: int
    blocks: dict[str, int]
    silence_s: float
    behind_frames: int
    bad_messages: int
    open_reservations: int
    backlog_tokens: int
    running: int
    waiting: int
    skipped_events: int
    predicted_cached_tokens: int
    actual_cached_tokens: int
    overstated_tokens: int
    counters: dict[str, int]
    problems: tuple[str, ...]


class Accuracy:
    """Predicted and actual cached tokens over the last one to two windows of ACCURACY_WINDOW_S. Constant memory."""

    def __init__(self) -> None:
        self._window = 0
        self._old = (0, 0)
        self._new = (0, 0)

    def note(self, *, predicted: int, actual: int, now: float) -> None:
        """Take one finished prefill."""
        self._turn(now)
        self._new = (self._new[0] + predicted, self._new[1] + actual)

    def totals(self, now: float) -> tuple[int, int]:
        """Sums of predicted and of actual tokens."""
        self._turn(now)
        return self._old[0] + self._new[0], self._old[1] + self._new[1]

    def _turn(self, now: float) -> None:
        window = int(now // ACCURACY_WINDOW_S)
        if window != self._window:
            self._old = self._new if window == self._window + 1 else (0, 0)
            self._new = (0, 0)
            self._window = window


class Overstatement:
    """How many tokens fewer an optimistic replica's engine finds than it shows, learnt from the engine's own counts.

    Such an engine resumes from the last point where all of its layers can: the distance to it hardly depends on the
    prompt's length. `tokens` is the median of the last OVERSTATEMENT_SAMPLES prefills, 0 before any. O(1), small."""

    def __init__(self) -> None:
        self.tokens = 0
        self._missed: deque[int] = deque(maxlen=OVERSTATEMENT_SAMPLES)

    def note(self, *, shown: int, found: int) -> None:
        """Take one finished prefill: tokens that were shown as cached, and those that were found."""
        if shown:
            self._missed.append(max(0, shown - found))
            self.tokens = sorted(self._missed)[len(self._missed) // 2]


_STATE_PROBLEMS: Final = {
    State.JOINING: "its first snapshot has not come yet: no locality credit",
    State.GAP: "events were lost; a snapshot will be asked for: no locality credit",
    State.RESYNC: "events were lost; waiting for a snapshot: no locality credit",
    State.MISMATCHED: "its events have another block size than its metadata: no locality credit until it restarts",
    State.EXPIRED: "it has fallen silent: not routable",
}


def problems_of(
    feed: Feed, *, bad_messages: int, skipped_events: int, predicted: int, actual: int, data_fault: str = ""
) -> tuple[str, ...]:
    """What is wrong with a replica, in words; nothing when all is well."""
    found = [_STATE_PROBLEMS[feed.state]] if feed.state in _STATE_PROBLEMS else []
    if data_fault:
        found.append(f"no data plane, Serve's handle is used: {data_fault}")
    if bad_messages:
        found.append(f"{bad_messages} of its messages were malformed")
    if skipped_events:
        found.append(f"{skipped_events} of its engine's events could not be used")
    if feed.counters["index_overflows"] or feed.counters["snapshot_overflows"]:
        found.append("it claims more blocks than its pool can hold")
    if abs(predicted - actual) > max(NOTEWORTHY_TOKENS, NOTEWORTHY_SHARE * max(predicted, actual)):
        found.append(f"cached tokens predicted {predicted}, counted by the engine {actual}")
    return tuple(found)
