"""The spread of a quantity over operations. Pure."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from dxt_replay.traces.measures.distribution import Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Spread of a quantity over operations; None without operations."""

    min: float | None
    median: float | None
    mean: float | None
    max: float | None

    @classmethod
    def of(cls, distribution: Distribution) -> Spread:
        """The spread of a collected distribution."""
        values = distribution.minimum, distribution.median, distribution.mean, distribution.maximum
        return cls(**{f.name: _number(value) for f, value in zip(dataclasses.fields(cls), values, strict=True)})


def _number(value: float) -> float | None:
    """None for nan, an int for a whole number."""
    if math.isnan(value):
        return None
    return int(value) if float(value).is_integer() else float(value)
