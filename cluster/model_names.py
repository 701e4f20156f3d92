"""Which model a client means: a served name, or another name that an alias leads to.

Coding agents know models by their vendor's ids (`claude-opus-5-5`, a small one for titles) and shape their prompts by
them. Aliases are patterns with `*`, tried in the operator's order; they never hide a served name.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from router.errors import UnknownModel
from router.limits import MAX_HINT_CHARS, MAX_MODEL_NAME_CHARS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.models.served import ServedModel


class ModelNames:
    """The served models by name, and the aliases that lead to them."""

    def __init__(self, models: Mapping[str, ServedModel], aliases: Mapping[str, str]) -> None:
        self._models = models
        self._aliases = {pattern: models[name] for pattern, name in aliases.items()}

    def __repr__(self) -> str:
        return f"<ModelNames {list(self._models)} {list(self._aliases)}>"

    def find(self, name: str) -> ServedModel:
        """The model that `name` means. Raises `UnknownModel`."""
        served = self._models.get(name)
        if served is None and len(name) <= MAX_MODEL_NAME_CHARS:
            found = (model for pattern, model in self._aliases.items() if fnmatchcase(name, pattern))
            served = next(found, None)
        if served is None:
            raise UnknownModel(f"model: `{name[:MAX_HINT_CHARS]}` is not served here; GET /v1/models lists what is")
        return served

    def listed(self) -> dict[str, ServedModel]:
        """What `/v1/models` lists: served names, then aliases that are names themselves."""
        named = {pattern: model for pattern, model in self._aliases.items() if not set(pattern) & set("*?[")}
        return {**self._models, **named} | dict(self._models)
