"""The smallest instance of a JSON schema."""

from __future__ import annotations

from math import ceil, floor, inf
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from router.errors import InvalidRequest
from router.limits import MAX_SIM_INSTANCE_DEPTH, MAX_SIM_INSTANCE_PARTS

_Type = Literal["null", "boolean", "integer", "number", "string", "array", "object"]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_SIMPLEST_FIRST: Final = ("null", "boolean", "integer", "number", "string", "array", "object")


class _Schema(msgspec.Struct, frozen=True):
    """What is looked at; alternatives and parts stay as they came until their turn."""

    const: Any = UNSET
    enum: list[Any] = []
    type: _Type | list[_Type] | UnsetType = UNSET
    any_of: list[Any] = msgspec.field(name="anyOf", default_factory=list)
    one_of: list[Any] = msgspec.field(name="oneOf", default_factory=list)
    all_of: list[Any] = msgspec.field(name="allOf", default_factory=list)
    ref: str = msgspec.field(name="$ref", default="")
    properties: dict[str, Any] = {}
    required: list[str] = []
    items: Any = None
    min_items: _Count = msgspec.field(name="minItems", default=0)
    min_length: _Count = msgspec.field(name="minLength", default=0)
    minimum: float = -inf
    maximum: float = inf

    @property
    def kind(self) -> str:
        """Its type, the simplest of several; guessed from its other keys when it has none. "" is any."""
        if not isinstance(self.type, UnsetType):
            types = [self.type] if isinstance(self.type, str) else self.type
            return min(types, key=_SIMPLEST_FIRST.index, default="")
        return "object" if self.properties or self.required else "array" if self.min_items else ""

    @property
    def alternatives(self) -> list[Any]:
        """Schemas of which one must hold; several that must all hold are not supported."""
        if len(self.all_of) > 1:
            raise InvalidRequest("the simulated engine cannot follow allOf with several schemas")
        return self.any_of or self.one_of or self.all_of


def smallest(schema: object) -> Any:
    """Required properties only, the first value of an enum, the simplest of alternatives, the number nearest to zero.

    Follows const, enum, type, properties, required, items, minItems, minLength, minimum, maximum, anyOf, oneOf, allOf
    of one, and $ref inside the document; does not look at other keys. Raises `InvalidRequest` for more than
    `MAX_SIM_INSTANCE_PARTS` values and characters, for `MAX_SIM_INSTANCE_DEPTH` levels, and for what is no schema."""
    return _Builder(schema).build(schema, 0)


class _Builder:
    """One instance in the making, its parts counted."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._left = MAX_SIM_INSTANCE_PARTS

    def build(self, raw: object, depth: int) -> Any:
        self._count(1)
        if depth > MAX_SIM_INSTANCE_DEPTH:
            raise InvalidRequest(f"the schema nests deeper than the {MAX_SIM_INSTANCE_DEPTH} levels that are followed")
        schema = _read(raw)
        if schema.const is not UNSET:
            return schema.const
        if schema.enum:
            return schema.enum[0]
        if schema.ref:
            return self.build(self._target(schema.ref), depth + 1)
        if schema.alternatives:
            return self.build(min(schema.alternatives, key=_rank), depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: _Schema, depth: int) -> Any:
        match schema.kind:
            case "object":
                return {name: self.build(schema.properties.get(name, True), depth + 1) for name in schema.required}
            case "array":
                self._count(schema.min_items)
                return [self.build(schema.items, depth + 1) for _ in range(schema.min_items)]
            case "string":
                self._count(schema.min_length)
                return "x" * schema.min_length
            case "integer":
                return _nearest_to_zero(schema)
            case "number":
                return min(max(0, schema.minimum), schema.maximum)
            case kind:
                return False if kind == "boolean" else None

    def _target(self, ref: str) -> object:
        target = self._root
        if ref == "#":
            return target
        for step in ref.removeprefix("#/").split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if not ref.startswith("#/") or not isinstance(target, dict) or name not in target:
                raise InvalidRequest(f"$ref {ref!r} names nothing inside the schema")
            target = target[name]
        return target

    def _count(self, parts: int) -> None:
        self._left -= parts
        if self._left < 0:
            raise InvalidRequest(f"the schema's smallest instance has more than {MAX_SIM_INSTANCE_PARTS} parts")


def _read(raw: object) -> _Schema:
    if not isinstance(raw, dict):
        return _Schema()
    try:
        return msgspec.convert(raw, _Schema)
    except msgspec.ValidationError as fault:
        raise InvalidRequest(f"not a JSON schema: {fault}") from fault


def _rank(raw: object) -> int:
    """How simple an alternative promises to be: types in order, then what must be looked up."""
    schema = _read(raw)
    if schema.const is not UNSET or schema.enum:
        return 0
    return _SIMPLEST_FIRST.index(schema.kind) if schema.kind else len(_SIMPLEST_FIRST)


def _nearest_to_zero(schema: _Schema) -> int:
    if schema.minimum > 0:
        return ceil(schema.minimum)
    return floor(schema.maximum) if schema.maximum < 0 else 0
