"""What Kvist makes of a request, without a cluster: the rules applied, the prompt, its tokens and block hashes."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cluster.api.chat import parse_chat
from cluster.api.completions import parse_completion
from cluster.api.messages import parse_count
from cluster.api.responses import parse_responses
from router.hashing import block_hashes, seed_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.captures import Captured
    from cluster.models.served import ServedModel
    from cluster.prompt.conversation import Api, Change, Conversation

PARSERS: Final[dict[Api, Callable[[bytes], Conversation]]] = {
    "messages": parse_count,  # a captured count_tokens body has no max_tokens
    "chat": parse_chat,
    "completions": parse_completion,
    "responses": parse_responses,
}
UNLIMITED_TOKENS: Final = 2**31 - 1
WARNING_RULES: Final = {"media": "its content is not shown to a text-only model: {before}"}


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """One request as an ingress would send it to a replica. `block_hashes` are hexadecimal, of full blocks only, seeded
    with the model's name and no tenant."""

    model: str
    api: str
    tokens: int
    block_size: int
    block_hashes: list[str]
    token_ids: list[int]
    canonical_text: str
    changes: tuple[Change, ...]
    warnings: list[str]


async def explain(captured: Captured, model: ServedModel, *, block_size: int) -> Explained:
    """Parse, apply the model's rules, render and hash. Raises `ClientError` for a request that cannot be read.

    Of several prompts of Completions the first is shown.
    """
    conversation, changes = model.canonical(PARSERS[captured.api](captured.body))
    prompt: str | bytes = conversation.prompts[0] if conversation.prompts else await model.prompt(conversation)
    text = model.vocabulary.bytes_of(prompt).decode(errors="replace") if isinstance(prompt, bytes) else prompt
    if isinstance(prompt, bytes) or conversation.prompts:
        tokens = await model.raw_tokens(prompt)
    else:
        tokens = await model.tokens(prompt)
    hashes = block_hashes(tokens, block_size=block_size, seed=seed_of(model.name))
    token_ids = array("I", tokens).tolist()
    return Explained(
        model=conversation.model,
        api=captured.api,
        tokens=len(token_ids),
        block_size=block_size,
        block_hashes=[f"{block_hash:016x}" for block_hash in hashes],
        token_ids=token_ids,
        canonical_text=model.marks.shown(text),
        changes=changes,
        warnings=[*_warnings(conversation, changes)],
    )


def as_json(explained: Explained) -> dict[str, Any]:
    """Plain data, one line of `kvist explain --json`."""
    plain: dict[str, Any] = msgspec.to_builtins(explained)
    return plain


def _warnings(conversation: Conversation, changes: tuple[Change, ...]) -> list[str]:
    said = [f"{name}: not followed" for name in conversation.hints.ignored]
    said += [
        f"{change.path}: {WARNING_RULES[change.rule].format(before=change.before)}"
        for change in changes
        if change.rule in WARNING_RULES
    ]
    if len(conversation.prompts) > 1:
        said.append(f"prompt: {len(conversation.prompts) - 1} further prompts are not shown")
    return said
