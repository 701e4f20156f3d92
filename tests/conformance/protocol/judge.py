"""From a running server to a verdict for every behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp

from tests.conformance.protocol.behaviours import ALL
from tests.conformance.protocol.probe import TIMEOUT_S, Refused, Server, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from tests.conformance.protocol.probe import Behaviour, Need

UNSEEN = Verdict("source")
STAND_IN_LACKS = "404 not found"  # what the stand-in behind a gateway says of a path that it does not have


async def verdict_of(behaviour: Behaviour, server: Server, has: Set[Need]) -> Verdict:
    """Run one behaviour, unless what it needs is not there.

    A gateway without engine can only show that it refuses: what it passes on, the engine would decide.
    """
    missing = behaviour.needs and behaviour.needs not in has
    if missing and "engine" in has:
        return UNSEEN
    before = len(server.refusals)
    verdict = await _run(behaviour, server)
    if "engine" in has:
        return verdict
    refused = server.refusals[before:]
    if any(reply.words == STAND_IN_LACKS for reply in refused) or (missing and not refused):
        return UNSEEN
    return verdict


async def verdicts_of(
    url: str, *, model: str, has: Set[Need], behaviours: Iterable[Behaviour] = ALL
) -> dict[str, Verdict]:
    """By name, one after the other."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        server = Server(session, url, model)
        return {behaviour.name: await verdict_of(behaviour, server, has) for behaviour in behaviours}


async def _run(behaviour: Behaviour, server: Server) -> Verdict:
    """A refusal where an answer was due is a no, and so is an answer of another form."""
    try:
        return await behaviour.run(server)
    except Refused as refused:
        return Verdict("no", str(refused))
    except (KeyError, IndexError, TypeError) as error:
        return Verdict("no", f"unexpected form of the answer ({type(error).__name__}: {error})")
