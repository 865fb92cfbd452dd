"""What a pass over a capture adds up: of parts of the capture apart, perhaps in other processes, and then together."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

S = TypeVar("S", bound="Sums")


class Sums:
    """Base of collectors whose sums can be added. STAY: attributes that are not sums; they do not travel to another
    process, where only `merge` uses the object."""

    STAY: ClassVar[tuple[str, ...]] = ()

    def merge(self: S, later: S) -> None:
        """Add what `later` collected of ranks that follow all of this one's. `later` is used up."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self.STAY}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
