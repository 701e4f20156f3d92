"""How a fault ends a command: one sentence on stderr, and a code that says whose it was."""

from __future__ import annotations

import sys

from router.errors import ClientError, KvistError


def report_fault(fault: KvistError) -> int:
    """Print the sentence; 2 when the caller can mend it, 1 when the cluster failed."""
    print(f"kvist: {fault}", file=sys.stderr, flush=True)
    return 2 if isinstance(fault, ClientError) else 1
