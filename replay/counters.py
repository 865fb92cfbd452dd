"""Counters that the lanes of a run share: how one lane waits for what others have done.

A counter only grows. A lane adds to it with an ADD item and waits with a WAIT item (`replay.items`), in either core;
both sides may live in different processes when `cells` lies in memory that they share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from traces.errors import ReplayError


class Counters:
    """`cells`: int64[n], all zero at first; counter i is cells[i], which the compiled lanes read and add to atomically.

    `shared`: whether other processes add to them too, which only the compiled core can do without losing any.
    Raises: ReplayError when they are shared and that core is not installed.
    """

    __slots__ = ("_add", "_lock", "cells")

    def __init__(self, cells: np.ndarray, *, shared: bool = False) -> None:
        if cells.ndim != 1 or cells.dtype != np.int64 or not cells.flags.c_contiguous:
            raise ValueError("counters are one contiguous int64 array")
        self.cells = cells
        self._lock = threading.Lock()
        self._add = _compiled_add()
        if shared and self._add is None:
            raise ReplayError(
                "ranks of several processes that meet at collectives need the compiled issue loop, which is not "
                "installed: install again with a C compiler present, or replay in one process"
            )

    def __len__(self) -> int:
        return len(self.cells)

    def value(self, index: int) -> int:
        """What counter `index` stands at."""
        return int(self.cells[index])

    def add(self, index: int, amount: int, wake_multiple: int = 1) -> None:
        """Add to a counter, and wake the compiled lanes that wait for it when `wake_multiple` divides the sum."""
        if self._add is not None:
            self._add(self.cells, index, amount, wake_multiple)
            return
        with self._lock:
            self.cells[index] += amount


def _compiled_add() -> Callable[[np.ndarray, int, int, int], None] | None:
    """The atomic addition with its wake-up, None without the compiled core."""
    try:
        from replay._issue import add_to_counter
    except ImportError:
        return None
    return add_to_counter
