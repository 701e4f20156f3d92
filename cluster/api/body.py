"""From body bytes to checked fields: what all protocols share.

The body is scanned into raw fields; only fields that the protocol knows are decoded, straight into typed structs.
Unknown fields are never decoded, nor looked into: they cannot reach anything. Every complaint names its field.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

import msgspec

from router.errors import InvalidRequest, RequestTooLarge
from router.limits import (
    INLINE_BODY_BYTES,
    MAX_BODY_BYTES,
    MAX_BODY_COMMAS,
    MAX_BODY_MARKS,
    MAX_HINT_CHARS,
    MAX_IGNORED_FIELDS,
    MAX_JSON_DEPTH,
    MAX_NUMBER_CHARS,
    MAX_STOP_SEQUENCE_CHARS,
    MAX_STOP_SEQUENCES,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence, Set

Fields = dict[str, msgspec.Raw]

# What steers an engine behind the protocol's back: refused, so that nobody believes it was obeyed.
ENGINE_FIELDS: Final = frozenset(
    {
        "add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "cache_salt", "chat_template",
        "chat_template_kwargs", "continue_final_message", "guided_choice", "guided_grammar", "guided_json",
        "guided_regex", "ignore_eos", "include_stop_str_in_output", "kv_transfer_params", "logits_processors",
        "min_tokens", "mm_processor_kwargs", "nvext", "prompt_embeds", "prompt_logprobs", "prompt_token_ids",
        "skip_special_tokens", "stop_token_ids", "structured_outputs", "truncate_prompt_tokens", "vllm_xargs",
    }
)  # fmt: skip
# Their types bound their depth; what a block holds beside them is skipped unread.
_TYPED_THROUGHOUT: Final = frozenset({"input", "messages", "system"})
_TO_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NEITHER_BRACKETS_NOR_QUOTES: Final = bytes(set(range(256)) - set(b'[]{}"'))
_NOTHING: Final = frozenset({b"null", b'""', b"[]", b"{}"})
_NO_MARKS: Final = bytes(set(range(256)) - set(b'{["\\'))
_LEAST_ENTRY_BYTES: Final = 3  # of a list: an empty object and a comma


class _Anything(msgspec.Struct, gc=False):
    """Any object; its fields are skipped unread."""


class Known:
    """The fields of one protocol. Others are told apart from engine-private ones, which are refused."""

    def __init__(self, names: Set[str]) -> None:
        self.names = names
        raw_fields = [(name, msgspec.Raw, msgspec.Raw()) for name in sorted(names | ENGINE_FIELDS)]
        self._kind: Any = msgspec.defstruct("RawFields", raw_fields)

    def scan(self, body: bytes) -> tuple[Fields, tuple[str, ...]]:
        """The fields undecoded, and names of unknown ones (bounded).

        Of a large body only the known and the private ones; it is scanned once more for the names of others, unless
        those hold so many bytes that they could be a flood.
        """
        if len(body) <= INLINE_BODY_BYTES:
            fields: Fields = decode(body, Fields, "body")
            return fields, self._strangers(fields)
        fields = self._expected(body)
        if len(body) - sum(memoryview(raw).nbytes for raw in fields.values()) > INLINE_BODY_BYTES:
            return fields, (f"more than {INLINE_BODY_BYTES} bytes of unknown fields",)
        return fields, self._strangers(decode(body, Fields, "body"))

    def _expected(self, body: bytes) -> Fields:
        """Others are skipped and cost no memory, however many they are."""
        found = decode(body, self._kind, "body")
        values = ((name, getattr(found, name)) for name in self._kind.__struct_fields__)
        return {name: raw for name, raw in values if memoryview(raw).nbytes}

    def _strangers(self, fields: Fields) -> tuple[str, ...]:
        unknown = nsmallest(MAX_IGNORED_FIELDS, (name for name in fields if name not in self.names))
        return tuple(name[:MAX_HINT_CHARS] for name in unknown)


def read_fields(body: bytes, known: Known) -> tuple[Fields, tuple[str, ...]]:
    """The known fields undecoded, and the names of the others (bounded). At most two passes over `body`.

    Raises `RequestTooLarge`, or `InvalidRequest` for malformed or too deep JSON and for engine-private fields.
    """
    if len(body) > MAX_BODY_BYTES:
        raise RequestTooLarge(f"request body exceeds {MAX_BODY_BYTES} bytes")
    if len(body) > MAX_BODY_MARKS:
        _check_marks(body)
    fields, ignored = known.scan(body)
    private = sorted(ENGINE_FIELDS & fields.keys())
    if private:
        raise InvalidRequest(f"{private[0]}: this field belongs to an engine and cannot be set by a request")
    for name in (known.names & fields.keys()) - _TYPED_THROUGHOUT:
        check_depth(fields[name], name)
    return fields, ignored


def _check_marks(body: bytes) -> None:
    """Refuse a flood of values before any is looked at, at about a nanosecond a byte up to where it is too much.

    Brackets within strings are counted too; text has few. Quotes within strings are escaped, and are not.
    """
    marks = commas = 0
    for start in range(0, len(body), INLINE_BODY_BYTES):
        part = body[start : start + INLINE_BODY_BYTES]
        found = part.translate(None, _NO_MARKS)
        escapes = found.count(b"\\")
        marks += len(found) - escapes - (part.count(b'\\"') if escapes else 0)
        commas += part.count(b",")
        if marks > MAX_BODY_MARKS:
            raise RequestTooLarge(f"request body: more than {MAX_BODY_MARKS} brackets and quotes")
        if commas > MAX_BODY_COMMAS:
            raise RequestTooLarge(f"request body: more than {MAX_BODY_COMMAS} commas")


def check_length(raw: msgspec.Raw | None, path: str, *, most: int, of: str) -> None:
    """Refuse a list of more than `most` objects before any is read. What is no list passes. Raises `InvalidRequest`."""
    if raw is None or memoryview(raw).nbytes <= _LEAST_ENTRY_BYTES * most or bytes(memoryview(raw)[:1]) != b"[":
        return
    if len(decode(raw, list[_Anything], path)) > most:
        raise InvalidRequest(f"{path}: more than {most} {of}")


def decode(raw: bytes | msgspec.Raw, kind: Any, path: str) -> Any:
    """`raw` as `kind`. Raises `InvalidRequest` that says where."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        raise InvalidRequest(f"{path}{where.rstrip('`')}: {problem}") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{path}: not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest(f"{path}: nested too deeply") from None


def optional(fields: Fields, name: str, kind: Any) -> Any:
    """The decoded field; None when it is absent or null."""
    raw = fields.get(name)
    if raw is None:
        return None
    _check_number(raw, kind, name)
    return decode(raw, kind | None, name)


def required(fields: Fields, name: str, kind: Any) -> Any:
    """The decoded field. Raises `InvalidRequest` when it is absent."""
    raw = fields.get(name)
    if raw is None:
        raise InvalidRequest(f"{name}: field required")
    _check_number(raw, kind, name)
    return decode(raw, kind, name)


def _check_number(raw: msgspec.Raw, kind: Any, name: str) -> None:
    """Reading a number takes longer than in proportion to its digits."""
    if kind in (int, float, bool) and memoryview(raw).nbytes > MAX_NUMBER_CHARS:
        raise InvalidRequest(f"{name}: a number of at most {MAX_NUMBER_CHARS} characters is expected")


def check_depth(value: msgspec.Raw, path: str, *, most: int = MAX_JSON_DEPTH) -> None:
    """Refuse a value that nests deeper than `most`. Free for values without room to be deep, else linear.

    Nothing is decoded: that would hold up everybody for as long as a body is large.
    """
    data = bytes(value)
    if data.count(b"[") + data.count(b"{") <= most:
        return
    brackets = _brackets(data)
    for _ in range(most):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    if brackets:
        raise InvalidRequest(f"{path}: nested deeper than {most} levels")


def _brackets(data: bytes) -> bytes:
    """The brackets of a JSON value outside of its strings, all as square ones."""
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = unescaped.translate(_TO_BRACKETS, _NEITHER_BRACKETS_NOR_QUOTES)
    # Two quotes side by side leave all others inside or outside of strings as they were.
    return b"".join(bare.replace(b'""', b"").split(b'"')[::2])


def media_type_of(url: str) -> str:
    """The type that a data URL says, "" for other addresses."""
    if not url.startswith("data:"):
        return ""
    return url[5 : 5 + MAX_HINT_CHARS].partition(",")[0].partition(";")[0]


def is_given(raw: msgspec.Raw) -> bool:
    """Whether a value says more than null, which absent ones are read as."""
    return bytes(memoryview(raw)[:5]) != b"null"


def asks_for_something(value: msgspec.Raw) -> bool:
    """Whether a field says more than null or an empty value."""
    return bytes(value) not in _NOTHING


def within(value: float | None, path: str, *, low: float, high: float) -> float | None:
    """`value` when it lies in [low, high] or is absent. Raises `InvalidRequest`."""
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"{path}: must be between {low:g} and {high:g}")
    return value


def temperature_of(temperature: float | None, top_p: float | None) -> float:
    """No mass at all leaves the likeliest token: what engines call temperature 0, and refuse as `top_p` 0."""
    if top_p == 0:
        return 0.0
    return 1.0 if temperature is None else temperature


def stop_sequences(stops: Sequence[str], path: str) -> tuple[str, ...]:
    """Checked stop strings, empty ones left out. Raises `InvalidRequest`."""
    if len(stops) > MAX_STOP_SEQUENCES:
        raise InvalidRequest(f"{path}: more than {MAX_STOP_SEQUENCES} stop sequences")
    if any(len(stop) > MAX_STOP_SEQUENCE_CHARS for stop in stops):
        raise InvalidRequest(f"{path}: a stop sequence has more than {MAX_STOP_SEQUENCE_CHARS} characters")
    return tuple(stop for stop in stops if stop)


def refuse(fields: Fields, inert: Mapping[str, Collection[object]]) -> None:
    """Refuse fields that would change the answer and are not served, unless their value asks for nothing.

    `inert` maps each field to such values, beside null. They are small: whatever is not goes unread.
    """
    for name, harmless in inert.items():
        if name in fields and not _is_one_of(fields[name], (None, *harmless), name):
            raise InvalidRequest(f"{name}: not supported yet")


def _is_one_of(raw: msgspec.Raw, values: Sequence[object], path: str) -> bool:
    """Types must be equal too: `true` is not 1."""
    data = bytes(raw)
    if len(data) > MAX_HINT_CHARS:
        return False
    found = decode(data, Any, path)
    return any(type(found) is type(value) and found == value for value in values)
