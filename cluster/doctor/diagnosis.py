"""The diagnosis of one pair of requests, and of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from cluster.doctor.advice import advice_for, tool_changes
from cluster.doctor.parting import Parting, part
from cluster.doctor.prompts import rules_without, switches
from cluster.prompt.canonical import Rules
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from cluster.doctor.prompts import Prompt, Reader
    from cluster.doctor.requests import Pair, Request


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What a later request shares with an earlier one, without Kvist's rules (None: the model's template cannot show
    it) and with them. `rules` are those that the difference needs. `texts` are the prompts with rules, and without."""

    kind: str
    earlier: str
    later: str
    session: str
    earlier_tokens: int
    later_tokens: int
    before: Parting | None
    after: Parting
    rules: list[str]
    advice: list[str]
    texts: list[tuple[str, str]]

    @property
    def saved_tokens(self) -> int:
        """Prefill tokens of the later request that the rules save."""
        return self.before.lost_tokens - self.after.lost_tokens if self.before else 0


def diagnose(pair: Pair, reader: Reader) -> Diagnosis:
    """Render both with all rules, with none, and with all but one. Raises `InvalidRequest` for what has no prompt."""
    earlier, later = (_read(request, reader) for request in (pair.earlier, pair.later))
    after = part(earlier, later)
    off = rules_without(*switches())
    plain = [reader.read(request.conversation, off) for request in (pair.earlier, pair.later)]
    before = part(plain[0], plain[1]) if plain[0] and plain[1] else None
    needed = [name for name in switches() if _is_needed(pair, reader, name, after)]
    advice = advice_for(pair.kind, before or after, after, needed)
    if (after if before is None else before).path.startswith("tools"):
        advice += [text for text in [tool_changes(pair.earlier.conversation, pair.later.conversation)] if text]
    texts = [(earlier.text, later.text)]
    if plain[0] and plain[1]:
        texts.append((plain[0].text, plain[1].text))
    return Diagnosis(
        kind=pair.kind,
        earlier=pair.earlier.where,
        later=pair.later.where,
        session=pair.later.session,
        earlier_tokens=len(earlier.tokens),
        later_tokens=len(later.tokens),
        before=before,
        after=after,
        rules=needed,
        advice=advice,
        texts=texts,
    )


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain data without the prompts, one line of `kvist doctor --json`."""
    plain: dict[str, Any] = msgspec.to_builtins(diagnosis)
    del plain["texts"]
    for name in ("before", "after"):
        parting = getattr(diagnosis, name)
        plain[name] = None if parting is None else parting._asdict()
    return {**plain, "saved_tokens": diagnosis.saved_tokens}


def _read(request: Request, reader: Reader) -> Prompt:
    prompt = reader.read(request.conversation, Rules())
    if prompt is None:
        raise InvalidRequest(f"{request.where}: the model's chat template refuses it")
    return prompt


def _is_needed(pair: Pair, reader: Reader, name: str, after: Parting) -> bool:
    """Whether the pair shares less once this rule alone is off."""
    rules = rules_without(name)
    if rules == Rules():
        return False
    earlier, later = (reader.read(request.conversation, rules) for request in (pair.earlier, pair.later))
    return earlier is None or later is None or part(earlier, later).lost_tokens > after.lost_tokens
