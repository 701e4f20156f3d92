"""What is known of a peer from its own source or documents, for rows that cannot be run here.

`where` is a place in the peer's repository or package, or its command's help.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Source(NamedTuple):
    """What the peer does, and where that can be read. `status` is empty when something else decides."""

    status: str
    reason: str
    where: str


RELAYED: Final = Source("", "relayed as sent: the engine behind it decides", "its HTTP relay")
_NO_STRIP: Final = Source("no", "relayed as sent: nothing strips the line", "its name does not occur in smg's binary")
_DYNAMO: Final = "lib/llm/src/protocols/anthropic/stream_converter.rs"
_DYNAMO_TYPES: Final = "lib/llm/src/protocols/anthropic/types.rs"
_DYNAMO_HTTP: Final = "lib/llm/src/http/service/anthropic.rs"
_VLLM: Final = "vllm/entrypoints/anthropic"

SOURCES: Final[dict[str, dict[str, Source]]] = {
    "dynamo": {
        "own-tokens": Source("no", "a call's input is parsed and written anew by the template", _DYNAMO_TYPES),
        "structured-output": Source("", "passed on as a constraint: the engine decides", _DYNAMO_TYPES),
        "cut-call": Source("yes", "the last call's arguments are repaired when the answer is cut", _DYNAMO),
        "broken-call": Source("no", "a call whose arguments are no JSON is dropped, unless it was cut", _DYNAMO),
        "incremental-call": Source("no", "a call is held back until its end, then replayed in pieces", _DYNAMO),
        "ping": Source(
            "no",
            "no `ping`; comments if DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS is set",
            "lib/llm/src/http/service/anthropic.rs",
        ),
    },
    "vllm": {
        "own-tokens": Source("no", "a call's input is parsed and written anew by the template", f"{_VLLM}/serving.py"),
        "broken-call": Source(
            "partly", "text with parsers that check the JSON, a 500 with those that do not", f"{_VLLM}/serving.py:868"
        ),
        "ping": Source(
            "no", "the stream is not wrapped in `with_sse_keep_alive`, as that of Chat is", f"{_VLLM}/api_router.py"
        ),
    },
    "smg": {
        "attribution-responses": _NO_STRIP,
        "attribution-count-tokens": _NO_STRIP,
        "ping": Source(
            "yes", "`ping` after 15 s of silence in an open stream", "smg launch --help: --sse-keepalive-secs"
        ),
    },
}


def source_of(peer: str, behaviour: str) -> Source:
    """Raises KeyError for a row that nobody has read up: a peer with an engine must say something of each."""
    known = SOURCES.get(peer, {})
    return known.get(behaviour, RELAYED) if peer == "smg" else known[behaviour]
