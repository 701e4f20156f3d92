"""Kvist shows every behaviour of the conformance table, in this process; the page names every behaviour."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.conformance.protocol.behaviours import ALL
from tests.conformance.protocol.judge import verdict_of, verdicts_of
from tests.conformance.protocol.models import strict_model
from tests.conformance.protocol.peers import PEERS
from tests.conformance.protocol.probe import Behaviour, Reply, Verdict
from tests.conformance.protocol.scripted import EVERYTHING, scripted_app
from tests.conformance.protocol.sources import source_of

if TYPE_CHECKING:
    from tests.conformance.protocol.probe import Need, Server

PAGE = Path(__file__).parents[3] / "docs" / "conformance.md"


@pytest.fixture(scope="module")
def verdicts(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """Of the app over a simulated engine, all at once: the app starts once."""

    async def judge() -> dict[str, Verdict]:
        model = strict_model(tiny_model, tmp_path_factory.mktemp("conformance") / "model")
        async with scripted_app(model) as url:
            return await verdicts_of(url, model="tiny", has=EVERYTHING)

    return asyncio.run(judge())


@pytest.mark.parametrize("behaviour", ALL, ids=lambda behaviour: behaviour.name)
def test_kvist_shows(behaviour: Behaviour, verdicts: dict[str, Verdict]) -> None:
    """Each row; a no says what was measured instead."""
    verdict = verdicts[behaviour.name]
    assert verdict.status == "yes", f"{behaviour.title}: {verdict.status}, {verdict.detail}"


def test_names_are_unique() -> None:
    """They are the keys of results."""
    names = [behaviour.name for behaviour in ALL]
    assert len(names) == len(set(names))


def test_the_page_has_a_row_for_every_behaviour_and_no_other() -> None:
    """Written by `python -m tests.conformance.protocol --markdown`."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [behaviour.name for behaviour in ALL]


def test_every_server_has_a_cell_in_every_row() -> None:
    """A row that could not be run says so."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[3:-1]]
        assert len(cells) == len(PEERS), row
        assert all(re.match(r"yes|\*\*(partly|no)\*\*|\*source\*", cell) for cell in cells), row


@pytest.mark.parametrize("behaviour", [b for b in ALL if b.needs == "script"], ids=lambda behaviour: behaviour.name)
@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer != "kvist"])
def test_a_row_that_no_peer_can_be_asked_is_read_up(peer: str, behaviour: Behaviour) -> None:
    """No peer's answers can be scripted here."""
    source = source_of(peer, behaviour.name)
    assert source.reason
    assert source.where


class _Canned:
    """A server whose replies are given."""

    def __init__(self, *statuses: int, text: str = "{}") -> None:
        self.statuses = list(statuses)
        self.text = text
        self.refusals: list[Reply] = []


async def _refused(server: Server) -> Verdict:
    canned = cast("_Canned", server)
    replies = [Reply(status, {}, canned.text) for status in canned.statuses]
    canned.refusals += [reply for reply in replies if reply.status != 200]
    return Verdict("no" if canned.refusals else "yes")


@pytest.mark.parametrize(
    ("needs", "has", "canned", "expected"),
    [
        ("engine", {"engine"}, _Canned(200), "yes"),
        ("calls", {"engine"}, _Canned(200), "source"),
        ("script", {"engine", "calls"}, _Canned(400), "source"),
        ("engine", set(), _Canned(200), "source"),
        ("engine", set(), _Canned(400), "no"),
        ("", set(), _Canned(200), "yes"),
        ("", set(), _Canned(404, text='{"error": "not found"}'), "source"),
    ],
)
def test_a_gateway_is_judged_by_what_it_refuses_only(
    needs: Need, has: set[Need], canned: _Canned, expected: str
) -> None:
    """What it passes on, the engine behind it would decide; and what needs a missing part is not run."""
    verdict = asyncio.run(verdict_of(Behaviour("a", "A", _refused, needs), cast("Server", canned), has))
    assert verdict.status == expected
