"""How a generation that lost its replica goes on elsewhere: what is asked of the next replica.

The prompt and all tokens so far are its prompt. What is asked of the rest is the same as of the whole, less what there
is already. Everything behind the tokens (text, reasoning, calls, stop strings, usage) lives in the ingress and sees no
seam.

Exact are greedy answers, temperature, top-p, top-k, min-p, logit bias and the repetition penalty, which counts prompt
and answer alike; and a form, which the engine advances over the tokens that there are. A seed goes on as another one,
derived from it and from how many tokens there are: it does not draw the same numbers again, and a cut at the same place
continues alike. What counts or scores the answer's own tokens would begin anew, so it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import xxhash

from router.errors import CutShort

if TYPE_CHECKING:
    from workers.engine import Sampling

_SEEDS = 2**64
_LARGEST_SEED = 2**63 - 1


def rest_of(sampling: Sampling, *, made_tokens: int) -> Sampling | None:
    """What to ask for when so many tokens (at least one) have been made; None when they are all that was asked for.
    Raises `CutShort` where the rest could differ from what an unbroken run says."""
    if sampling.logprobs is not None:
        raise CutShort("log probabilities of two replicas do not make one answer")
    if sampling.presence_penalty or sampling.frequency_penalty:
        raise CutShort("presence and frequency penalties count the answer's own tokens, and would begin anew")
    left = sampling.max_tokens - made_tokens
    if left < 1:
        return None
    seed = None if sampling.seed is None else seed_after(sampling.seed, made_tokens=made_tokens)
    return msgspec.structs.replace(sampling, max_tokens=left, seed=seed)


def seed_after(seed: int, *, made_tokens: int) -> int:
    """The seed of the rest, from 0 to 2**63 - 1."""
    return xxhash.xxh3_64_intdigest(made_tokens.to_bytes(8, "little"), seed % _SEEDS) & _LARGEST_SEED
