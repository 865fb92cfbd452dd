"""Times of a description: the families of distributions that DLIO draws them from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Family = Literal["constant", "normal", "uniform", "gamma", "exponential", "poisson"]

FAMILY_PARAMETERS: Mapping[Family, tuple[str, ...]] = {
    "constant": ("mean",),
    "normal": ("mean", "stdev"),
    "uniform": ("min", "max"),
    "gamma": ("shape", "scale"),
    "exponential": ("scale",),
    "poisson": ("lam",),
}
"""Family of distributions -> its parameters, as DLIO names them and in the order of `Distribution.parameters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Times in seconds: the absolute value of a draw from `family`. `parameters`: see FAMILY_PARAMETERS."""

    family: Family = "constant"
    parameters: tuple[float, ...] = (0.0,)

    @property
    def mean_s(self) -> float:
        """Expectation of the family in seconds, before the absolute value is taken."""
        first, last = self.parameters[0], self.parameters[-1]
        if self.family == "uniform":
            return (first + last) / 2
        return first * last if self.family == "gamma" else first


NO_TIME = Distribution()
"""The distribution of a time that is always 0."""
