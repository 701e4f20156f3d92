"""How many replicas a model has when nobody says a fixed number: Serve's own autoscaling, in this config's words."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Autoscaling(BaseModel):
    """Between `min_replicas` and `max_replicas`, so that each has about `target_ongoing_requests`. New replicas start
    with cold caches and take long to load, and leaving ones take theirs along: hence slow to grow, slower to shrink."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    max_replicas: Annotated[int, Field(ge=1, le=1024)]
    target_ongoing_requests: Annotated[float, Field(gt=0)] = 32.0
    upscale_delay_s: Annotated[float, Field(ge=0)] = 15.0
    downscale_delay_s: Annotated[float, Field(ge=0)] = 600.0

    @model_validator(mode="after")
    def _range_is_a_range(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is less than min_replicas {self.min_replicas}")
        return self

    def serve_options(self) -> dict[str, Any]:
        """Serve's `autoscaling_config`."""
        return self.model_dump() | {"initial_replicas": self.min_replicas}
