"""The processes of one cluster: logs in a folder, watched while it starts, ended by pid."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import psutil

from load_tests.peers.environment import PeerFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

STOP_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.5
REQUEST_LIMIT_S: Final = 10.0
SHOWN_CHARS: Final = 200


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A temporary folder for logs, which stays when a peer fails: its message says that they are there."""
    folder = Path(tempfile.mkdtemp(prefix=f"kvist-{name}-"))
    try:
        yield folder
    except PeerFailed:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


class Children:
    """Use as a context manager: all that was started has ended when it is left, last first."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            stop(child)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Start one; its output goes to a log file of its name. The pid."""
        with (self._folder / f"{self._name}-{name}.log").open("wb") as log:
            child = subprocess.Popen(  # noqa: S603 - the interpreter was named by the caller
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=dict(environment)
            )
        self._children.append(child)
        return child.pid

    def wait_until(self, ready: Callable[[], str], *, limit_s: float) -> None:
        """Block until `ready` says nothing more that is missing. Raises `PeerFailed` when a process has ended, or with
        what was said last after `limit_s`."""
        deadline, missing = time.monotonic() + limit_s, "nothing was asked"
        while time.monotonic() < deadline:
            self._check_alive()
            missing = ready()
            if not missing:
                return
            time.sleep(POLL_S)
        raise PeerFailed(f"{self._name} is not ready after {limit_s:.0f} s: {missing}; logs are in {self._folder}")

    def _check_alive(self) -> None:
        for child in self._children:
            if child.poll() is not None:
                raise PeerFailed(
                    f"a process of {self._name} has ended with code {child.returncode}; logs are in {self._folder}"
                )


def stop(child: subprocess.Popen[bytes]) -> None:
    """End it by pid; kill it when it does not leave within STOP_TIMEOUT_S, and whatever it leaves behind."""
    family = _descendants(child.pid)
    if child.stdin is not None:
        child.stdin.close()
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        family += _descendants(child.pid)
        child.kill()
        child.wait()
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # psutil knows a number that was given out again
            one.kill()
    psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def chat_fault(url: str, model: str) -> str:
    """What is wrong with a smallest chat request, in the words of the server or the system; "" when it is answered."""
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "ready?"}]}
    status, said = call(url, "/v1/chat/completions", json.dumps(body).encode())
    return "" if status == 200 else said or f"status {status}"


def call(url: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    """Status and the start of what the server said to a GET, or to a POST of `body`; 0 where nobody answers."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=REQUEST_LIMIT_S)
    try:
        connection.request("POST" if body else "GET", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")[:SHOWN_CHARS]
    except (OSError, http.client.HTTPException) as fault:
        return 0, str(fault)
    finally:
        connection.close()
