"""Where prepared demo models live."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`KVIST_CACHE`, else the user's cache folder. The same for the replicas and the ingress of one node."""
    return Path(os.environ.get("KVIST_CACHE") or Path.home() / ".cache" / "kvist")
