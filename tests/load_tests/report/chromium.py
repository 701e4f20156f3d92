"""A page in headless Chromium without any network: its document after scripts ran, its console, its picture."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


class Opened(NamedTuple):
    """What came of a page."""

    dom: str
    console: list[str]
    requested: str
    """Chromium's own log of its network."""


def open_page(page: Path, folder: Path) -> Opened:
    """Load, let its scripts run, read all."""
    log = folder / "net.json"
    done = _run(folder, f"--log-net-log={log}", "--enable-logging=stderr", "--v=0", "--dump-dom", page.as_uri())
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Opened(done.stdout, console, log.read_text(encoding="utf-8"))


def colours(page: Path, folder: Path, *, width: int, height: int, scheme: int) -> tuple[Image.Image, int]:
    """The page's picture in a light (1) or a dark (0) scheme, and how many colours it has."""
    shot = folder / f"{width}-{scheme}.png"
    size = f"--window-size={width},{height}"
    _run(folder, size, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={shot}", page.as_uri())
    image = Image.open(shot).convert("RGB")
    return image, len(image.getcolors(maxcolors=1 << 24) or [])


def _run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = next(
        (found for name in (os.environ.get("KVIST_CHROMIUM", ""), *PROGRAMS) if (found := shutil.which(name))), None
    )
    assert program, "no Chromium here: `make browser` installs it, or KVIST_CHROMIUM names its program"
    always = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=1000"]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}"]
    return subprocess.run(
        [program, *always, *offline, *options], capture_output=True, text=True, timeout=60, check=True
    )
