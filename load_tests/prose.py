"""Seeded pseudo-prose for prompts: the same seed gives the same text on every machine."""

from __future__ import annotations

import random
from typing import Final

NOUN_LIST: Final = """
module parser socket buffer replica branch commit ticket cache index router worker schema lexer queue token thread
window handle packet record bucket column cursor format filter folder header kernel margin object
"""
VERB_LIST: Final = (
    "reads writes splits merges checks drops keeps opens closes parses sorts counts moves holds sends guards"
)
NOUNS: Final = tuple(NOUN_LIST.split())
VERBS: Final = tuple(VERB_LIST.split())
ENDINGS: Final = ("before it returns.", "when the test runs.", "unless the flag is set.", "and logs the reason.")


def sentences(seed: int, count: int) -> str:
    """`count` sentences of about 12 words, one to a line."""
    rng = random.Random(seed)
    return "\n".join(_sentence(rng) for _ in range(count))


def _sentence(rng: random.Random) -> str:
    subject, thing, other = rng.choice(NOUNS), rng.choice(NOUNS), rng.choice(NOUNS)
    return f"The {subject} {rng.choice(VERBS)} the {thing} of every {other} {rng.randrange(1000)} {rng.choice(ENDINGS)}"


def attribution_header(seed: int) -> str:
    """An attribution line in the form old coding clients send: its last field is new on every request."""
    rng = random.Random(seed)
    version, check = f"{rng.randrange(16**3):03x}", f"{rng.randrange(16**5):05x}"
    return f"x-anthropic-billing-header: cc_version=2.1.114.{version}; cc_entrypoint=sdk-cli; cch={check};"
