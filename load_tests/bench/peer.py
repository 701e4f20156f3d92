"""The peer's process: found, started under its own interpreter, pinned, spoken to, and ended by pid."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from load_tests.peers.environment import PeerFailed, interpreter_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

SCRIPTS: Final = {"dynamo": "peer_dynamo.py"}
STOP_TIMEOUT_S: Final = 10.0


class Peer:
    """A running peer: `script`, else its side of the bench. Its calls block; use as a context manager."""

    def __init__(self, name: str, *, lab: Path, script: Path | None = None) -> None:
        self._name = name
        self._script = script or Path(__file__).with_name(SCRIPTS[name])
        self._python = interpreter_of(name, lab)
        self._lab = lab
        self._files: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="kvist-bench-")
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        # A child inherits the CPUs of the thread that starts it: the bench is pinned before it starts a peer.
        self._process = subprocess.Popen(  # noqa: S603 - the interpreter was named by the caller
            [str(self._python), str(self._script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()

    def file(self, name: str, content: object) -> str:
        """Path of a msgpack file with this content; written the first time a name is used."""
        if name not in self._files:
            path = Path(self._folder.name) / name
            path.write_bytes(msgspec.msgpack.encode(content))
            self._files[name] = str(path)
        return self._files[name]

    def stream(self, name: str, items: Iterable[object]) -> str:
        """Path of a file with these items as msgpack objects one after the other; written the first time."""
        if name not in self._files:
            path = Path(self._folder.name) / name
            with path.open("wb") as sink:
                sink.writelines(map(msgspec.msgpack.encode, items))
            self._files[name] = str(path)
        return self._files[name]

    def another(self) -> Peer:
        """A peer of the same kind, not started."""
        return Peer(self._name, lab=self._lab, script=self._script)

    def ask(self, command: str, **arguments: Any) -> Any:
        """Send a command and wait for its answer. Raises `PeerFailed`."""
        self.send(command, **arguments)
        return self.answer()

    def send(self, command: str, **arguments: Any) -> None:
        """Send a command whose answer is fetched later."""
        assert self._process.stdin is not None
        try:
            print(json.dumps({"do": command, **arguments}), file=self._process.stdin, flush=True)
        except OSError:
            raise self._gone() from None

    def answer(self) -> Any:
        """The answer to the oldest command without one. Raises `PeerFailed`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        reply = json.loads(line)
        if "ok" not in reply:
            raise PeerFailed(f"{self._name}: {reply['error']}")
        return reply["ok"]

    def _gone(self) -> PeerFailed:
        self._process.wait(STOP_TIMEOUT_S)
        self._log.seek(0)
        last = self._log.read().strip().splitlines()[-1:] or ["no message"]
        return PeerFailed(f"{self._name} has ended with code {self._process.returncode}: {last[0]}")
