"""Bodies of `/v1/completions`: prompts, or a complaint that is the client's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.api.completions import parse_completion
from tests.fuzz import bodies
from tests.fuzz.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cluster.prompt.conversation import Conversation

FIELDS: Final[dict[str, Any]] = {"model": "m", "prompt": "Once"}
EXTRAS: Final[dict[str, Any]] = {
    "prompt": [[1, 2], [2**31 - 1]], "max_tokens": 0, "n": 2, "logprobs": 5, "echo": False, "suffix": "", "stop": "a",
    "seed": 1, "stream": True, "stream_options": {"include_usage": True}, "logit_bias": {"7": 1}, "x": [[[]]],
}  # fmt: skip
PROMPTS: Final[tuple[Any, ...]] = ("a", ["a", "b"], [1, 2], [[1], [2]], [], [""], ["a", 1], [[]], [2**31], [True], None)


def parse(body: bytes) -> Conversation:
    """A conversation of prompts alone, each of them something to continue."""
    found = parse_completion(body)
    assert found.prompts
    assert all(found.prompts)
    assert (found.messages, found.system, found.tools) == ((), (), ())
    return found


def run(data: bytes) -> None:
    draw = Draw(data)
    fields = {**FIELDS, "prompt": draw.one_of(PROMPTS)} if draw.one_in(2) else FIELDS
    bodies.check(parse, bodies.body_of(draw, fields, extras=EXTRAS))


def seeds() -> Iterator[bytes]:
    for seed in bodies.seeds(FIELDS, extras=EXTRAS):
        yield b"\x00" + seed
    for i in range(len(PROMPTS)):
        yield bytes([1, i]) + bodies.BUILT


def recorded(fixtures: Path) -> Iterator[bytes]:
    """None: no agent completes raw prompts."""
    yield from ()
