"""The file of keys for event sockets: one pair for all replicas, one for all ingresses of a cluster.

Made by `kvist keys events`; every node has a copy that only its operator can read.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final, Self

import msgspec

from router.curve import ClientCurve, CurveKeys, ServerCurve
from router.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

PRIVATE: Final = 0o600


class EventKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Both pairs."""

    replicas: CurveKeys
    ingresses: CurveKeys

    @classmethod
    def generate(cls) -> Self:
        """New pairs."""
        return cls(replicas=CurveKeys.generate(), ingresses=CurveKeys.generate())

    @classmethod
    def read(cls, path: Path) -> Self:
        """The keys at `path`. Raises `InvalidRequest` with the file and the reason."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as fault:
            raise InvalidRequest(f"{path}: no event keys ({fault}): make them with `kvist keys events`") from fault

    def write(self, path: Path) -> None:
        """Make the file, for its owner only. Raises `FileExistsError` rather than lock a running cluster out."""
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w", encoding="utf-8") as out:
            json.dump(msgspec.to_builtins(self), out)

    @property
    def for_replicas(self) -> ServerCurve:
        """Who binds: only this cluster's ingresses may listen."""
        return ServerCurve(self.replicas, frozenset({self.ingresses.public}))

    @property
    def for_ingresses(self) -> ClientCurve:
        """Who connects: only this cluster's replicas are heard."""
        return ClientCurve(self.ingresses, self.replicas.public)
