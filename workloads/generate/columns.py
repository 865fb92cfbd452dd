"""Arrays that belong together, as the fields of a dataclass; only this module selects and joins their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

Table = TypeVar("Table", bound="Columns")


class Columns:
    """Base of dataclasses with slots whose fields are arrays of one length."""

    __slots__: tuple[str, ...] = ()

    def at(self: Table, rows: np.ndarray | slice) -> Table:
        """The rows of a mask, a slice or an index array, in their order."""
        return type(self)(**{name: getattr(self, name)[rows] for name in self.__slots__})

    @classmethod
    def joined(cls: type[Table], parts: Sequence[Table]) -> Table:
        """The rows of at least one part, one part after the other."""
        columns = {name: np.concatenate([getattr(each, name) for each in parts]) for name in cls.__slots__}
        return cls(**columns)
