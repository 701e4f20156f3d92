"""Generated turns, kept until the client returns them: what finds a turn again, and a memory bounded in bytes.

Clients return a turn in their own form: keys in another order, `1.0` as `1`, escapes resolved, empty text dropped,
calls under other ids, reasoning left out. None of that is part of what a turn is found by, except where its words would
no longer tell it from another's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from xxhash import xxh3_128

from cluster.prompt.json_text import object_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cluster.prompt.conversation import ToolCall
    from cluster.prompt.template import Turn

_ENTRY_BYTES: Final = 1_100  # objects and table entries of one turn, measured with its digests and names
_WHOLE: Final = 2**53  # up to here a float is the whole number it seems to be


class Place(NamedTuple):
    """Whose turn, of which model, and the digest of what came before with the turn's own text and tools."""

    tenant: str
    model: str
    digest: bytes


class KnownTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One generated turn. Digests are of the calls, of their ids and of the reasoning (empty where there is none).

    `prefix` is the digest of the prompt it answered, `prompt_bytes` that prompt's length (packed u32), `opening` the
    end of its text from the last atom on. `tokens` are what was generated, packed u32.
    """

    place: Place
    calls: bytes
    ids: bytes
    reasoning: bytes
    prefix: bytes
    prompt_bytes: int
    opening: str
    tokens: bytes

    @property
    def cost_bytes(self) -> int:
        """What it takes to remember this."""
        return len(self.tokens) + 4 * len(self.opening) + _ENTRY_BYTES


class TurnMemory:
    """Who holds most loses their least recently used turn first, so one tenant cannot push out what others hold.

    `put` and `use` belong to one thread; `at` may be asked from others meanwhile. All are O(1), but `put` is O(tenants)
    for each turn that has to go.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._turns: dict[str, OrderedDict[tuple[Place, bytes, bytes], KnownTurn]] = {}
        self._places: dict[Place, dict[tuple[bytes, bytes], KnownTurn]] = {}
        self._bytes: dict[str, int] = {}
        self._total_bytes = 0

    def at(self, place: Place) -> Sequence[KnownTurn]:
        """Turns that were generated there, the newest last: usually one, several when a request was repeated."""
        return list(self._places.get(place, {}).values())

    def use(self, turn: KnownTurn) -> None:
        """It is now its tenant's most recently used; one that has gone stays gone."""
        turns = self._turns.get(turn.place.tenant)
        if turns is not None and _key(turn) in turns:
            turns.move_to_end(_key(turn))

    def put(self, turn: KnownTurn) -> None:
        """Remember, instead of one with the same words at the same place; not what is larger than the memory."""
        tenant = turn.place.tenant
        self._drop(self._places.get(turn.place, {}).get((turn.calls, turn.reasoning)))
        if turn.cost_bytes > self._max_bytes:
            return
        self._turns.setdefault(tenant, OrderedDict())[_key(turn)] = turn
        self._places.setdefault(turn.place, {})[turn.calls, turn.reasoning] = turn
        self._bytes[tenant] = self._bytes.get(tenant, 0) + turn.cost_bytes
        self._total_bytes += turn.cost_bytes
        while self._total_bytes > self._max_bytes:
            _, largest = max((held, tenant) for tenant, held in self._bytes.items())
            self._drop(next(iter(self._turns[largest].values())))

    def check_integrity(self) -> None:
        """Both tables hold the same turns, bytes are counted right and within their bound, nothing is kept empty."""
        turns = [turn for kept in self._turns.values() for turn in kept.values()]
        assert self._total_bytes == sum(self._bytes.values()) <= self._max_bytes
        assert self._bytes == {t: sum(turn.cost_bytes for turn in kept.values()) for t, kept in self._turns.items()}
        assert all(self._turns.values())
        assert all(self._places.values())
        assert sorted(map(_key, turns)) == sorted(
            _key(turn) for kept in self._places.values() for turn in kept.values()
        )

    def _drop(self, turn: KnownTurn | None) -> None:
        if turn is None:
            return
        tenant = turn.place.tenant
        del self._turns[tenant][_key(turn)]
        del self._places[turn.place][turn.calls, turn.reasoning]
        self._bytes[tenant] -= turn.cost_bytes
        self._total_bytes -= turn.cost_bytes
        if not self._places[turn.place]:
            del self._places[turn.place]
        if not self._turns[tenant]:
            del self._turns[tenant], self._bytes[tenant]

    def __repr__(self) -> str:
        count = sum(map(len, self._turns.values()))
        return (
            f"TurnMemory({count} turns of {len(self._turns)} tenants, {self._total_bytes} of {self._max_bytes} bytes)"
        )


def _key(turn: KnownTurn) -> tuple[Place, bytes, bytes]:
    return turn.place, turn.calls, turn.reasoning


def pasts(turns: Iterable[Turn], before: xxh3_128 | None = None) -> Iterator[xxh3_128]:
    """For each turn what was said before it, as a digest, and at the end one of everything. O(text).

    `before` is such a digest of turns that precede these. Reasoning is left out: clients drop that of past turns
    whenever they like.
    """
    past = xxh3_128() if before is None else before.copy()
    for turn in turns:
        yield past.copy()
        said = (part for call in turn.calls for part in (call.name, call.arguments))
        _add(past, [turn.role, turn.name, turn.content, *said])
    yield past


def digest_at(past: xxh3_128, turn: Turn) -> bytes:
    """The `Place.digest` of an assistant's turn: what was said before, its text, and what it calls."""
    here = xxh3_128(past.digest())
    _add(here, [turn.content.strip(), *(call.name for call in turn.calls)])
    return here.digest()


def match(known: Sequence[KnownTurn], turn: Turn, *, ids_matter: bool) -> KnownTurn | None:
    """Which of the turns known at one place is this one, if any.

    Reasoning that came back must be the turn's own. Reasoning that did not come back is the turn's only where nothing
    else could be meant: among several, the one whose calls have these ids. `ids_matter` where prompts show them.
    """
    if not known:
        return None
    calls, ids, reasoning = digest_of_calls(turn.calls), digest_of_ids(turn.calls), digest_of_text(turn.reasoning)
    fits = [one for one in known if one.calls == calls and (one.ids == ids or not ids_matter)]
    if reasoning:
        fits = [one for one in fits if one.reasoning == reasoning]
    elif len(fits) > 1:
        fits = [one for one in fits if ids and one.ids == ids]
    return fits[0] if len(fits) == 1 else None


def digest_of_text(text: str) -> bytes:
    """Of the text without outer whitespace; empty for none."""
    return xxh3_128(_bytes(text.strip())).digest() if text.strip() else b""


def digest_of_calls(calls: Sequence[ToolCall]) -> bytes:
    """Of names and arguments, in whatever form a client writes these; empty without calls."""
    return _digest([part for call in calls for part in (call.name, normal_arguments(call.arguments))])


def digest_of_ids(calls: Sequence[ToolCall]) -> bytes:
    """Of the calls' ids; empty without calls."""
    return _digest([call.id for call in calls])


def normal_arguments(arguments: str) -> str:
    """The same for all texts of one JSON object; what is none stays as it is, but for outer whitespace."""
    try:
        value = object_of(arguments)
        return arguments.strip() if value is None else msgspec.json.encode(_plain(value), order="sorted").decode()
    except RecursionError:
        return arguments.strip()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _WHOLE:
        return int(value)
    return value


def _digest(parts: Sequence[str]) -> bytes:
    if not parts:
        return b""
    whole = xxh3_128()
    _add(whole, parts)
    return whole.digest()


def _add(digest: xxh3_128, parts: Sequence[str]) -> None:
    """Every part with its length, and their number: no two lists look alike."""
    encoded = [_bytes(part) for part in parts]
    digest.update(b"%d:%s;" % (len(encoded), b",".join(b"%d" % len(part) for part in encoded)))
    for part in encoded:
        digest.update(part)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
