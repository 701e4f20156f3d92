"""Sends a session's requests to the ingress replica that knows it: a few lines more in HAProxy's configuration.

Serve 2.60 has no setting for it, but lets us name the binary: `cluster.ray_env` puts a wrapper there, which runs this
file before each start and reload of HAProxy. It needs the standard library only and no package of ours.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SLOTS: Final = 1_024  # that sessions are hashed to
SLOTS_PER_LINE: Final = 48  # HAProxy takes 64 words
SLOT: Final = "txn.kvist_slot"


def with_sessions(config: str, headers: Sequence[str]) -> str:
    """A configuration in which a request with one of these headers, the first that it has, goes to the server that its
    value stands for while that is up. All others, and all where there is one server, go as they did. Unchanged if done.
    """
    if SLOT in config:
        return config
    return "".join(
        line for section in _sections(config.splitlines(keepends=True)) for line in _with_rules(section, headers)
    )


def owners(servers: Sequence[str]) -> list[str]:
    """Who gets each slot: the same on every node, and a server that comes or goes moves only its own share."""
    return [max(servers, key=lambda server: (_weight(slot, server), server)) for slot in range(SLOTS)]


def _weight(slot: int, server: str) -> bytes:
    return hashlib.blake2b(f"{slot} {server}".encode(), digest_size=8).digest()


def _sections(lines: Iterable[str]) -> Iterator[list[str]]:
    section: list[str] = []
    for line in lines:
        if line[:1].strip() and section:
            yield section
            section = []
        section.append(line)
    yield section


def _with_rules(section: list[str], headers: Sequence[str]) -> list[str]:
    found = [(at, words) for at, line in enumerate(section) if (words := line.split())[:1] == ["server"]]
    servers = [words[1] for _, words in found if "backup" not in words]
    if len(servers) < 2:
        return section
    first = found[0][0]
    return [*section[:first], *_slot_rules(headers), *_server_rules(servers), *section[first:]]


def _slot_rules(headers: Sequence[str]) -> Iterator[str]:
    for header in headers:
        given = f"req.hdr({header})"
        yield (
            f"    http-request set-var({SLOT}) {given},xxh32,mod({SLOTS})"
            f" if {{ {given} -m found }} !{{ var({SLOT}) -m found }}\n"
        )


def _server_rules(servers: Sequence[str]) -> Iterator[str]:
    owned = owners(servers)
    for server in servers:
        slots = [str(slot) for slot, owner in enumerate(owned) if owner == server]
        for at in range(0, len(slots), SLOTS_PER_LINE):
            among = " ".join(slots[at : at + SLOTS_PER_LINE])
            yield f"    use-server {server} if {{ var({SLOT}) -m int {among} }}\n"


def main(path: str, *headers: str) -> None:
    """Rewrite a configuration file."""
    file = Path(path)
    file.write_text(with_sessions(file.read_text(encoding="utf-8"), headers), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
