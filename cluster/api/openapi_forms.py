"""Small builders of JSON schemas, so that a description of an API reads like its tables of fields."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

BOOLEAN: Schema = {"type": "boolean"}
ANY_OBJECT: Schema = {"type": "object"}
NULL: Schema = {"type": "null"}


def text(description: str = "", **more: Any) -> Schema:
    """A string."""
    return {"type": "string", **({"description": description} if description else {}), **more}


def integer(low: int | None = None, high: int | None = None) -> Schema:
    """A whole number within bounds."""
    return {"type": "integer"} | _bounds(low, high)


def number(low: float | None = None, high: float | None = None) -> Schema:
    """A number within bounds."""
    return {"type": "number"} | _bounds(low, high)


def one_of(*values: str | int | None) -> Schema:
    """One of some values."""
    return {"enum": list(values)}


def array(items: Schema, **more: Any) -> Schema:
    """A list of things of one form."""
    return {"type": "array", "items": items, **more}


def record(properties: dict[str, Schema], *, required: tuple[str, ...] = (), description: str = "") -> Schema:
    """An object. Fields beside these are allowed and ignored."""
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    if description:
        schema["description"] = description
    return schema


def typed(kind: str, properties: dict[str, Schema], *, required: tuple[str, ...] = ()) -> Schema:
    """An object that is told apart by its `type`."""
    return record({"type": {"const": kind}, **properties}, required=("type", *required))


def either(*schemas: Schema) -> Schema:
    """Any of several forms."""
    return {"anyOf": list(schemas)}


def maybe(schema: Schema) -> Schema:
    """The form, or null."""
    return either(schema, NULL)


def ref(name: str) -> Schema:
    """A form that has a name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _bounds(low: float | None, high: float | None) -> Schema:
    return ({} if low is None else {"minimum": low}) | ({} if high is None else {"maximum": high})
