"""What is wrong with a config, in words: the place, the reason, and for an unknown key the one that was meant."""

from __future__ import annotations

import difflib
import typing
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import ValidationError


def lines_of(fault: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line per place; where a part of a place is wrong, the part only."""
    found = {error["loc"]: _words(error, model) for error in fault.errors()}
    inner = [place for place in found if not any(other[: len(place)] == place != other for other in found)]
    return [f"{'.'.join(map(str, place)) or 'config'}: {found[place]}" for place in inner]


def _words(error: Any, model: type[BaseModel]) -> str:
    if error["type"] != "extra_forbidden":
        return str(error["msg"]).removeprefix("Value error, ")
    *parents, key = error["loc"]
    names = sorted({name for owner in _models_at(model, parents) for name in owner.model_fields})
    near = difflib.get_close_matches(str(key), names, n=1)
    return f"unknown key; did you mean `{near[0]}`?" if near else f"unknown key; known are {', '.join(names)}"


def _models_at(model: type[BaseModel], path: Sequence[str | int]) -> list[type[BaseModel]]:
    """The models that may stand at `path` below `model`: fields by name, items of lists and mappings by anything."""
    here: list[type[BaseModel]] = [model]
    annotation: Any = model
    for step in path:
        owners = [owner for owner in here if isinstance(step, str) and step in owner.model_fields]
        if owners:
            annotation = owners[0].model_fields[str(step)].annotation
        here = list(_models_in(annotation))
    return here


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)
