"""Base of mergeable accumulators: one per piece of a capture, perhaps in other processes, merged in rank order."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

S = TypeVar("S", bound="Sums")


class Sums:
    """STAY: attributes that are not sums. They are not pickled: in another process only `merge` uses the object."""

    STAY: ClassVar[tuple[str, ...]] = ()

    def merge(self: S, later: S) -> None:
        """Add the sums of `later`, whose ranks all follow this one's. `later` must not be used afterwards."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self.STAY}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
