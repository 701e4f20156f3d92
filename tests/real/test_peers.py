"""Peers that really run: each answers, finds its cache again, and has ended afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import psutil
import pytest

from load_tests.client import Prompt, Sample, Turn, stream
from load_tests.peers.environment import PeerMissing, interpreter_of, lab_folder
from load_tests.peers.pairs import PAIRS
from load_tests.prose import attribution_header, sentences

if TYPE_CHECKING:
    from pathlib import Path

    from load_tests.client import Api
    from load_tests.peers.running import Running

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.vllm, pytest.mark.timeout(900)]
ASKED = 4


@pytest.mark.parametrize("peer", PAIRS)
def test_a_peer_and_kvist_run_beside_each_other(peer: str, tmp_path: Path) -> None:
    """A prompt asked again comes from the cache on both, over each API that is compared; nothing is left behind."""
    try:
        interpreter_of(peer, lab_folder())
    except PeerMissing as fault:
        pytest.skip(str(fault))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with PAIRS[peer].start(tmp_path, lab_folder()) as sides:
        for running in sides:
            for api in PAIRS[peer].apis:
                samples = asyncio.run(asked_again(running, api))
                assert samples[0].prompt_tokens > 2_000
                assert samples[-1].cached_tokens > 0.9 * samples[-1].prompt_tokens, running.name
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before


async def asked_again(running: Running, api: Api) -> list[Sample]:
    """One after the other. Over the chat API without a header: Dynamo keeps it there."""
    front = (attribution_header(1),) if api == "messages" else ()
    prompt = Prompt(system=(*front, f"{api} {running.name}. {sentences(3, 100)}"), turns=(Turn("user", "Which?"),))
    async with aiohttp.ClientSession(running.url) as http:
        return [await stream(http, api=api, model=running.model, prompt=prompt, max_tokens=2) for _ in range(ASKED)]
