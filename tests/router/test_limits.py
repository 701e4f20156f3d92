"""Every limit is used, and has a test that says what it stops; times that depend on each other fit together."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from router import limits

ROOT = Path(__file__).parents[2]
NAMES = sorted(name for name in vars(limits) if name.isupper())


@cache
def words_of_code(package: str) -> frozenset[str]:
    """The names that a package's code uses, imports aside."""
    trees = [tree_of(path) for path in (ROOT / package).rglob("*.py") if path.name != "limits.py"]
    return frozenset(node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name))


@cache
def words_of_tests() -> frozenset[str]:
    """All words inside test functions, their names, docstrings and decorators included."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for part in (*node.decorator_list, node):
                    found.update(re.findall(r"\w+", ast.get_source_segment(text, part) or ""))
    return frozenset(found)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_every_limit_is_used_and_has_a_test(name: str) -> None:
    """A limit that nobody tests is a hope; one that nobody uses is a lie."""
    users = [package for package in ("router", "workers", "cluster") if name in words_of_code(package)]
    assert users, f"{name} limits nothing"
    assert name in words_of_tests(), f"no test says what {name} stops"


def test_a_lost_heartbeat_ends_no_lease_and_silence_is_noticed_soon() -> None:
    """TICK_INTERVAL_S stops a silent replica from staying routable much longer than LEASE_S; a publisher may miss a few
    HEARTBEAT_INTERVAL_S; RELINK_INTERVAL_S leaves ZMQ's own reconnection the time of a lease."""
    assert 4 * limits.HEARTBEAT_INTERVAL_S < limits.LEASE_S <= limits.RELINK_INTERVAL_S
    assert 10 * limits.TICK_INTERVAL_S <= limits.LEASE_S


def test_what_one_side_sends_fits_what_the_other_takes() -> None:
    """A frame or chunk of most hashes is no bigger than MAX_FRAME_BYTES; all chunks hold what one replica may show."""
    assert 8 * limits.MAX_FRAME_HASHES < limits.MAX_FRAME_BYTES
    assert 8 * limits.SNAPSHOT_CHUNK_HASHES < limits.MAX_FRAME_BYTES
    assert limits.MAX_SNAPSHOT_CHUNKS * limits.SNAPSHOT_CHUNK_HASHES > limits.MAX_RELAY_BLOCKS
    assert limits.SNAPSHOT_REPLIES_HWM * limits.SNAPSHOT_CHUNK_HASHES > limits.MAX_RELAY_BLOCKS
