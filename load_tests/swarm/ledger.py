"""The ledger of a swarm: one line for every request, written as it ends, so that every figure can be made again."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Literal

import msgspec

from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Outcome = Literal["completed", "cancelled", "refused", "failed", "timed_out", "unfinished"]
"""How a request ended; every request has exactly one.
`completed`   the answer came to its end
`cancelled`   the client cut it, as its script says
`refused`     the endpoint answered with a status other than 200
`failed`      no connection, or an answer that broke off or turned into an error
`timed_out`   the client's limit for one request passed
`unfinished`  the run was over and its grace time too"""
ERRORS: frozenset[Outcome] = frozenset({"refused", "failed", "timed_out"})


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Times are seconds from the start of the run; `due_s` is when it had to be sent, and what the client
    came too late by counts as latency. Token counts are the endpoint's own usage, None where it told none.

    `seen_chars` of the prompt's `prompt_chars` led an earlier prompt of the run: what an infinite cache would hold.
    Both count bytes of UTF-8, and leave the attribution line out.
    """

    agent: str
    session: int
    turn: int
    due_s: float
    sent_s: float
    outcome: Outcome
    last_token_s: float
    """When the last token came, or when the request ended without one."""
    first_token_s: float | None = None
    status: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    replica: str | None = None
    error: str | None = None
    """Class of the error, as `http_529`, `connection`, `stream_error`, `truncated`; None without one."""
    prompt_chars: int = 0
    seen_chars: int = 0
    longest_gap_s: float = 0.0
    """The longest silence between two pieces of the answer."""
    is_measured: bool = True
    """False for what was due during the warm-up."""
    parent: str | None = None
    """The agent that a sub-agent works for."""

    @property
    def is_error(self) -> bool:
        """What the endpoint did wrong; a cut by the client is none."""
        return self.outcome in ERRORS

    @property
    def ttft_ms(self) -> float | None:
        """From the time it was due to the first token; None when none came."""
        return None if self.first_token_s is None else (self.first_token_s - self.due_s) * 1e3

    @property
    def e2e_ms(self) -> float:
        """From the time it was due to its end."""
        return (self.last_token_s - self.due_s) * 1e3

    @property
    def itl_ms(self) -> float | None:
        """Mean time between two tokens of a completed answer; None for answers of fewer than two."""
        if self.outcome != "completed" or self.first_token_s is None or (self.output_tokens or 0) < 2:
            return None
        assert self.output_tokens is not None
        return (self.last_token_s - self.first_token_s) * 1e3 / (self.output_tokens - 1)

    @property
    def ideal_tokens(self) -> float:
        """Tokens of the prompt that an infinite cache would have held: the share of its leading text seen before."""
        return (self.prompt_tokens or 0) * self.seen_chars / self.prompt_chars if self.prompt_chars else 0.0

    def check_integrity(self) -> None:
        """Raise AssertionError when times or counts contradict each other."""
        assert self.due_s <= self.sent_s <= self.last_token_s
        assert self.first_token_s is None or self.sent_s <= self.first_token_s <= self.last_token_s
        assert 0 <= self.seen_chars <= self.prompt_chars
        assert (self.error is None) == (not self.is_error)


def write_entry(entry: Entry, file: IO[bytes]) -> None:
    """Append one line."""
    file.write(msgspec.json.encode(entry) + b"\n")


def write_ledger(entries: Iterable[Entry], path: Path) -> None:
    """Write all of them, replacing the file; its folder is made when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for entry in entries:
            write_entry(entry, file)


def read_ledger(path: Path) -> Iterator[Entry]:
    """The entries of a file, one by one. Raises `InvalidRequest` with the line that is none."""
    decoder = msgspec.json.Decoder(Entry)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as fault:
                raise InvalidRequest(f"{path}:{number}: is no line of a ledger: {fault}") from fault
