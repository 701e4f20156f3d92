"""`kvist` as typed: what goes wrong before a cluster starts is one sentence and exit code 2."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cluster.cli import ServeOverrides
from cluster.config import parse_config
from cluster.environment import keys_from_environment, strip_from_environment
from cluster.preflight import check_memory
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path


def kvist(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cluster.cli", *args]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment
    )


def refused(*args: str, **environment: str) -> str:
    """The one sentence on stderr of a command that must end with code 2."""
    done = kvist(*args, **environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kvist: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_port_in_use_is_named() -> None:
    """And what to do about it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} on 127.0.0.1 cannot be used" in refused("serve", "--port", port, "--model", "tiny")


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    """A path that is not there, and a folder that holds no model."""
    assert "was not found" in refused("serve", "--model", str(tmp_path / "nothing"))
    assert "has no config.json" in refused("serve", "--model", str(tmp_path))


def test_a_host_other_than_loopback_without_a_key_is_refused() -> None:
    """An open port serves anybody."""
    assert "a key is required" in refused("serve", "--host", "0.0.0.0", KVIST_API_KEYS="")


def test_too_little_memory_is_one_clear_sentence() -> None:
    """Before anything was started."""
    config = parse_config({"models": [{"name": "tiny", "source": "tiny", "replicas": 1024}]})
    with pytest.raises(InvalidRequest, match="1024 replicas need about"):
        check_memory(config)


def test_options_override_the_file_and_leave_the_rest() -> None:
    """`--replicas` and `--no-strip-anthropic-preamble` reach every model; a folder's name becomes the model's."""
    base = parse_config({"models": [{"name": "a", "source": "tiny"}, {"name": "b", "source": "tiny"}], "port": 9000})
    given = {"model": None, "replicas": 3, "engine": "sim", "port": None, "host": None, "api_keys": ("k",)}
    config = ServeOverrides(**given, strip=False).apply(base)
    assert [(m.name, m.replicas, m.engine, m.rules.strip_anthropic_preamble) for m in config.models] == [
        ("a", 3, "sim", False),
        ("b", 3, "sim", False),
    ]
    assert (config.port, config.api_keys) == (9000, ("k",))


def test_help_lists_the_commands() -> None:
    """It is fast, for it imports neither Ray nor vLLM."""
    done = kvist("--help")
    assert done.returncode == 0
    assert {"serve", "down", "demo"} <= set(done.stdout.split())


def test_nothing_to_join_and_nothing_to_take_down_is_said_at_once() -> None:
    """Ray alone would try for minutes."""
    done = kvist("down", "--ray-address", "127.0.0.1:9")
    assert done.returncode == 1
    assert "no Ray cluster answers at 127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_switch_in_the_environment_is_true_or_false(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo is not taken for the default."""
    for word, meaning in (("off", False), ("1", True), ("", None)):
        monkeypatch.setenv("KVIST_STRIP_ANTHROPIC_PREAMBLE", word)
        assert strip_from_environment() is meaning
    monkeypatch.setenv("KVIST_STRIP_ANTHROPIC_PREAMBLE", "flase")
    with pytest.raises(InvalidRequest, match="say true or false"):
        strip_from_environment()


def test_keys_in_the_environment_are_parted_by_commas_or_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """For `serve` and `status` alike."""
    monkeypatch.setenv("KVIST_API_KEYS", "one, two three")
    assert keys_from_environment() == ["one", "two", "three"]
