"""Base of mergeable accumulators: one per piece of a capture, perhaps in other processes, merged in rank order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

S = TypeVar("S", bound="Sums")


class Sums:
    """STAY: attributes that are not sums. They are not pickled: in another process only `merge` uses the object."""

    STAY: ClassVar[tuple[str, ...]] = ()

    def merge(self: S, later: S) -> None:
        """Add the sums of `later`, whose ranks all follow this one's, attribute by attribute: numbers and arrays are
        added, masks and mappings joined, lists chained. `later` must not be used afterwards."""
        for name, more in vars(later).items():
            if name not in self.STAY:
                vars(self)[name] = _both(vars(self)[name], more)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self.STAY}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _both(mine: Any, more: Any) -> Any:
    if mine is None or more is None:
        return mine if more is None else more
    if isinstance(mine, Sums):
        mine.merge(more)
        return mine
    if isinstance(mine, Mapping):
        return {**mine, **more}  # by rank: no rank is in two pieces
    if isinstance(mine, np.ndarray) and mine.dtype == bool:
        return mine | more
    return mine + more
