"""The numbers that started this project, as published, and what stands beside them: rows, data, a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from rich.console import Console
from rich.table import Table

from load_tests.stats import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from load_tests.demo_arms import Arm

TABLE_WIDTH: Final = 150


class Arms(msgspec.Struct, frozen=True, kw_only=True):
    """Median time to the first text of one long prompt, by what stands at its front: always the same, a new line each
    time that stays in, a new line each time that is taken out. `asked_again` counts requests that failed first."""

    stable_ms: float
    varying_ms: float
    stripped_ms: float
    requests_per_arm: int
    prompt_tokens: int
    asked_again: int = 0

    @classmethod
    def of(cls, ttft_ms: Mapping[Arm, Sequence[float]], *, prompt_tokens: int, asked_again: int = 0) -> Arms:
        """Medians. Raises `ValueError` for an arm without any."""
        return cls(
            stable_ms=round(percentile(ttft_ms["stable"], 50), 2),
            varying_ms=round(percentile(ttft_ms["varying"], 50), 2),
            stripped_ms=round(percentile(ttft_ms["stripped"], 50), 2),
            requests_per_arm=len(ttft_ms["stable"]),
            prompt_tokens=prompt_tokens,
            asked_again=asked_again,
        )

    @property
    def lost_ms(self) -> float:
        """What the changing line costs a request."""
        return round(self.varying_ms - self.stable_ms, 2)


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """A team of agents over all its calls. `hit_rate` is tokens read from cache over prompt tokens, `read_to_write`
    tokens read over those computed anew; each None where it was not published."""

    agents: int
    calls: int | None
    hit_rate: float | None
    read_to_write: float | None

    @classmethod
    def of(cls, *, agents: int, calls: int, prompt_tokens: int, cached_tokens: int) -> Team:
        """Raises ZeroDivisionError when nothing was asked, or nothing computed."""
        return cls(
            agents=agents,
            calls=calls,
            hit_rate=round(cached_tokens / prompt_tokens, 4),
            read_to_write=round(cached_tokens / (prompt_tokens - cached_tokens), 1),
        )


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One source of numbers. `caveat` says what they do and do not measure."""

    name: str
    origin: Literal["published", "measured"]
    arms: Arms
    team: Team
    caveat: str


PUBLISHED: Final = Row(
    name="Dynamo's articles, a B200",
    origin="published",
    arms=Arms(stable_ms=168, varying_ms=912, stripped_ms=169, requests_per_arm=45, prompt_tokens=52_000),
    team=Team(agents=4, calls=None, hit_rate=0.972, read_to_write=11.7),
    caveat="Times: a 120B model on localhost; the line that varied was a session line, which nothing strips, so the "
    "slow case is any changing line and not the attribution header itself. 744 ms is their difference. Team: four "
    "agents on a managed API, not on Dynamo; 11.7 : 1 is one session of 42 calls (891k tokens read, 76k written), "
    "97.2 % another run's sum over the four. How much of a team's prompts can come from cache follows from how fast "
    "they grow: compare rows with equal teams only.",
)


def as_data(rows: Sequence[Row], about: dict[str, Any]) -> dict[str, Any]:
    """The content of article.json."""
    listed = [{**msgspec.to_builtins(row), "lost_ms": row.arms.lost_ms} for row in rows]
    return {"rows": listed, **about}


def as_text(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """What a person reads."""
    table = Table("", *(f"{row.name}\n({row.origin})" for row in rows))
    for words, cells in _lines(rows):
        table.add_row(words, *cells)
    console = Console(width=TABLE_WIDTH)
    with console.capture() as capture:
        console.print(table)
    where = about["machine"]
    lines = [capture.get().rstrip(), *(f"{row.name}: {row.caveat}" for row in rows)]
    lines.append(f"{where['cpu']}, {where['cores']} cores, load average at the start {where['load_1min']}")
    lines.append(", ".join(f"{name} {version}" for name, version in about["versions"].items()))
    return "\n".join(lines)


def _lines(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    arms, teams = [row.arms for row in rows], [row.team for row in rows]
    return [
        ("prompt tokens", [f"{one.prompt_tokens:,}" for one in arms]),
        ("first text, nothing varies, ms", [f"{one.stable_ms:,.1f}" for one in arms]),
        ("… a line varies and stays", [f"{one.varying_ms:,.1f}" for one in arms]),
        ("… a line varies and is stripped", [f"{one.stripped_ms:,.1f}" for one in arms]),
        ("what the line costs, ms", [f"{one.lost_ms:,.1f}" for one in arms]),
        ("… times the stable case", [f"{one.varying_ms / one.stable_ms:.1f}" for one in arms]),
        ("requests an arm, asked again", [f"{one.requests_per_arm}, {one.asked_again}" for one in arms]),
        ("team: agents, calls", [f"{one.agents}, {one.calls or '-'}" for one in teams]),
        ("team: tokens from cache", ["-" if one.hit_rate is None else f"{one.hit_rate:.1%}" for one in teams]),
        ("team: read : write", ["-" if one.read_to_write is None else f"{one.read_to_write:.1f} : 1" for one in teams]),
    ]
