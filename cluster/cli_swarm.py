"""`kvist swarm`: a swarm of coding agents against an endpoint, Kvist's or any other, and what they felt."""

from __future__ import annotations

from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from router.errors import InvalidRequest


class ApiChoice(StrEnum):
    """The protocol spoken."""

    MESSAGES = "messages"
    CHAT = "chat"


class PreambleChoice(StrEnum):
    """The attribution line in front of the system text."""

    CHANGING = "changing"
    FIXED = "fixed"
    NONE = "none"


class RateChoice(StrEnum):
    """What comes at a rate."""

    REQUESTS = "requests"
    SESSIONS = "sessions"


class ScenarioChoice(StrEnum):
    """A workload by name."""

    AGENTS = "agents"
    HOT_PREFIX = "hot-prefix"
    FORK = "fork"


def swarm(
    url: Annotated[str, typer.Option(help="The endpoint, without the API's path.")] = "http://127.0.0.1:8000",
    api: Annotated[ApiChoice, typer.Option(help="Anthropic's Messages, or OpenAI's chat.")] = ApiChoice.MESSAGES,
    model: Annotated[str, typer.Option(help="Name of the model; by default the first that is listed.")] = "",
    key: Annotated[str, typer.Option(envvar="KVIST_SWARM_KEY", help="Sent as API key.")] = "",
    local: Annotated[int | None, typer.Option(min=1, help="Start so many simulated replicas here first.")] = None,
    scenario: Annotated[ScenarioChoice, typer.Option(help="What is played.")] = ScenarioChoice.AGENTS,
    trace: Annotated[Path | None, typer.Option(help="Play this trace (JSONL, may be gzipped).")] = None,
    sessions: Annotated[int | None, typer.Option(min=1, help="At most so many sessions.")] = None,
    agents: Annotated[int | None, typer.Option(min=1, help="Closed loop of so many agents; 200.")] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: so many in a second, come what may.")] = None,
    rate_of: Annotated[RateChoice, typer.Option(help="What comes at --rate.")] = RateChoice.SESSIONS,
    duration: Annotated[float | None, typer.Option(help="Measured seconds; 60.")] = None,
    warmup: Annotated[float | None, typer.Option(min=0, help="Seconds before, left out of the figures; 10.")] = None,
    ramp: Annotated[float | None, typer.Option(min=0, help="Seconds until all agents, or the full rate; 5.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed makes the same sessions and times.")] = 0,
    salt: Annotated[str, typer.Option(help="Makes texts new to every cache; by default the time.")] = "",
    turns: Annotated[int | None, typer.Option(min=1, help="Mean requests of a session; 10.")] = None,
    answer_tokens: Annotated[int | None, typer.Option(min=1, help="Mean length of an answer; 60.")] = None,
    system_chars: Annotated[int | None, typer.Option(min=1, help="Length of the shared system texts; 8000.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Kinds of agents; 4.")] = None,
    think: Annotated[float | None, typer.Option(min=0, help="Mean pause before a request, seconds; 5.")] = None,
    think_scale: Annotated[float | None, typer.Option(min=0, help="Of a trace's pauses; 1.")] = None,
    token_scale: Annotated[float | None, typer.Option(help="Of a trace's prompts and answers; 1.")] = None,
    fork_share: Annotated[float | None, typer.Option(min=0, max=1, help="Turns that start sub-agents; 0.05.")] = None,
    cancel_share: Annotated[float | None, typer.Option(min=0, max=1, help="Requests that are cut; 0.02.")] = None,
    preamble: Annotated[PreambleChoice, typer.Option(help="The attribution line.")] = PreambleChoice.CHANGING,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="A good request's first token comes within it.")] = None,
    slo_itl_ms: Annotated[float | None, typer.Option(help="And its others at most so far apart.")] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="How many there are, silent ones included.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out"),
    name: Annotated[str, typer.Option(help="Name of the files there.")] = "swarm",
) -> None:
    """Play a swarm of coding agents against an endpoint and say what they felt."""
    from cluster.swarm_cluster import local_swarm_cluster  # noqa: PLC0415 - keeps `--help` fast
    from load_tests.swarm.settings import make_settings  # noqa: PLC0415 - same

    settings = make_settings(
        api=api.value,
        model=model,
        scenario="trace" if trace else scenario.value,
        trace=str(trace) if trace else None,
        sessions=sessions,
        agents=agents,
        rate=rate,
        rate_of=rate_of.value,
        duration_s=duration,
        warmup_s=warmup,
        ramp_s=ramp,
        seed=seed,
        salt=salt,
        turns=turns,
        answer_tokens=answer_tokens,
        system_chars=system_chars,
        heads=heads,
        think_s=think,
        think_scale=think_scale,
        token_scale=token_scale,
        fork_share=fork_share,
        cancel_share=cancel_share,
        preamble=preamble.value,
        slo_ttft_ms=slo_ttft_ms,
        slo_itl_ms=slo_itl_ms,
        replicas=replicas or local,
    )
    with local_swarm_cluster(local) if local else nullcontext(url) as found:
        _play(settings, url=found, key=key, out=out, name=name)


def _play(settings: Any, *, url: str, key: str, out: Path, name: str) -> None:
    import uvloop  # noqa: PLC0415 - keeps `--help` fast
    from rich.console import Console  # noqa: PLC0415 - same

    from load_tests.swarm.results import write_results  # noqa: PLC0415 - same
    from load_tests.swarm.run import Target, run_swarm  # noqa: PLC0415 - same
    from load_tests.swarm.tables import times_table, words_of  # noqa: PLC0415 - same

    if "/" in name or not name:
        raise InvalidRequest(f"--name {name!r}: say the name of a file without its folder")
    result = uvloop.run(run_swarm(settings, Target(url, key, name), console=Console(stderr=True)))
    console = Console()
    console.print(times_table(result.summary))
    for line in words_of(result.summary):
        console.print(line, highlight=False, soft_wrap=True)
    console.print("written: " + " ".join(map(str, write_results(result, out))), highlight=False, soft_wrap=True)
