"""Find processes by a mark in the environment they inherited, as an operator would: in /proc."""

from __future__ import annotations

import time
from pathlib import Path

MARK = "KVIST_TEST_MARK"


def marked(mark: str) -> dict[int, str]:
    """Living processes whose environment holds MARK=mark: pid → command line. Zombies do not count."""
    found = {}
    needle = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, IndexError):
            continue
        if needle in environment and state != "Z":
            found[int(entry.name)] = command
    return found


def wait_until_gone(mark: str, limit_s: float) -> dict[int, str]:
    """Poll until no marked process is left or `limit_s` has passed; what is left then."""
    deadline = time.monotonic() + limit_s
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
