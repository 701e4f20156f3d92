"""Sessions from recorded traces: one request a line (Mooncake's form), or one agent's session a line.

Both give prompts by the ids of their blocks. A line with `hash_ids` is a
request, a line with `requests` a session.
"""

from __future__ import annotations

import gzip
import itertools
import random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from load_tests.swarm.block_text import BlockTexts
from load_tests.swarm.scenario import Blocks, Branch, Session, Turn
from load_tests.swarm.schedule import scaled_times
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from load_tests.swarm.settings import Settings

REQUEST_BLOCK_TOKENS: Final = 512

Line = dict[str, Any]


class Trace:
    """A trace as a workload. Sessions are read once and kept as ids; texts are made when a prompt is asked for."""

    def __init__(self, sessions: Sequence[Session], texts: Callable[[int], BlockTexts]) -> None:
        self._sessions = sessions
        self.texts = texts
        self.at_once: int | None = None

    def __repr__(self) -> str:
        return f"<Trace of {len(self._sessions)} sessions>"

    @property
    def total(self) -> int:
        return len(self._sessions)

    def session(self, number: int) -> Session:
        return self._sessions[number]


def read_trace(path: Path, settings: Settings) -> Trace:
    """All of a trace, or its first sessions in an order that the seed shuffles. Raises `InvalidRequest`."""
    lines = list(_lines(path))
    if not lines:
        raise InvalidRequest(f"{path}: holds no line")
    try:
        return _requests(lines, settings) if "hash_ids" in lines[0] else _sessions(lines, settings)
    except (KeyError, TypeError, ValueError) as fault:
        raise InvalidRequest(f"{path}: is no trace of requests or sessions: {fault!r}") from fault


def _lines(path: Path) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as fault:
                raise InvalidRequest(f"{path}:{number}: {fault}") from fault


def _requests(lines: list[Line], settings: Settings) -> Trace:
    """Every request is a session of one turn, due by its timestamp."""
    chosen = lines[: settings.sessions]
    times_s = scaled_times([line["timestamp"] / 1e3 for line in chosen], rate=settings.rate)
    sessions = [
        Session(number=number, turns=(_single(line, settings),), due_s=due_s)
        for number, (line, due_s) in enumerate(zip(chosen, times_s, strict=True))
    ]
    texts = _texts(settings, block_tokens=REQUEST_BLOCK_TOKENS)("trace")
    return Trace(sessions, lambda _: texts)


def _single(line: Line, settings: Settings) -> Turn:
    runs = tuple((block, 1) for block in line["hash_ids"])
    return _turn(Blocks(runs=runs, tokens=line["input_length"]), line["output_length"], settings, think_s=0.0)


def _sessions(lines: list[Line], settings: Settings) -> Trace:
    """Sessions with their own pauses; ids mean something inside a session only."""
    random.Random(settings.seed).shuffle(lines)
    chosen = lines[: settings.sessions]
    made = [
        Session(number=number, turns=tuple(_turns(line, line["block_size"], settings)))
        for number, line in enumerate(chosen)
    ]
    texts = _texts(settings, block_tokens=chosen[0]["block_size"])
    ids = [line["id"] for line in chosen]
    return Trace(made, lambda number: texts(ids[number]))


def _turns(agent: Line, block_size: int, settings: Settings) -> Iterator[Turn]:
    """An agent's requests; sub-agents between two of them belong to the first, and take from the next one's pause."""
    head = f"head-{agent['tool_tokens']}-{agent['system_tokens']}"
    head_blocks = (agent["tool_tokens"] + agent["system_tokens"]) // block_size
    turn: Turn | None = None
    for is_sub, group in itertools.groupby(agent["requests"], key=lambda one: one.get("type") == "subagent"):
        if is_sub:
            branches = tuple(_branch(one, block_size, settings) for one in group)
            turn = turn and msgspec.structs.replace(turn, branches=branches)
            continue
        for number, one in enumerate(group):
            if turn is not None:
                yield turn
            runs = tuple((first, count) for first, count in one["h"])
            content = Blocks(runs=runs, tokens=one["i"], head=head, head_blocks=head_blocks)
            waited = turn is not None and bool(turn.branches) and number == 0
            turn = _turn(content, one["o"], settings, think_s=0.0 if waited else one["think"] or 0.0)
    if turn is not None:
        yield turn


def _branch(agent: Line, block_size: int, settings: Settings) -> Branch:
    return Branch(name=str(agent["agent_id"]), turns=tuple(_turns(agent, block_size, settings)))


def _turn(content: Blocks, output_tokens: int, settings: Settings, *, think_s: float) -> Turn:
    return Turn(
        content=content,
        think_s=min(think_s * settings.think_scale, settings.max_think_s),
        max_tokens=max(1, round(output_tokens * settings.token_scale)),
    )


def _texts(settings: Settings, *, block_tokens: int) -> Callable[[str], BlockTexts]:
    pool = BlockTexts.pool(settings.seed)

    def scoped(scope: str) -> BlockTexts:
        return BlockTexts(
            pool, scope=scope, salt=settings.salt, block_tokens=block_tokens, token_scale=settings.token_scale
        )

    return scoped
