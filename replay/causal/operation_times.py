"""Splits the time of an operation into latency and transfer, by comparing operations of several sizes. Pure."""

from __future__ import annotations

import numpy as np

from dxt_replay.replay.engine.items import READ_AT, WRITE_AT
from dxt_replay.replay.plan.plan_row import OPERATION_ROW, is_operation

LEAST_RATIO = 4.0
"""Sizes must differ by this factor to show what a byte takes and what a request takes."""

LEAST_SHARE = 0.01
"""Share of the operations of a kind that a class of sizes must have to count among these."""

_POWERS = 64


class OperationTimes:
    """Time and size of reads and of writes, in classes of sizes by powers of two."""

    def __init__(self) -> None:
        # By kind (read, write) and class: operations, bytes, ns.
        self._sums = np.zeros((2, _POWERS, 3))

    def add(self, items: np.ndarray, durations_ns: np.ndarray) -> None:
        """Count the operations among `PLAN_ROW`s, with the duration of each item, int64 (n,)."""
        for row, kind in enumerate((READ_AT, WRITE_AT)):
            mine = is_operation(items) & (items["kind"] == kind)
            length = items.view(OPERATION_ROW)["length"][mine]
            moved = length > 0
            length, lasted = length[moved], durations_ns[mine][moved]
            power = np.minimum(np.frexp(length.astype(np.float64))[1], _POWERS - 1)
            for column, weights in enumerate((np.ones(len(length)), length, lasted)):
                self._sums[row, :, column] += np.bincount(power, weights=weights, minlength=_POWERS)

    @property
    def separable(self) -> bool:
        """Whether the sizes of reads (of writes, if there are more writes) differ enough."""
        return self._line(int(self._sums[:, :, 0].sum(axis=1).argmax())) is not None

    def latency_ns(self, items: np.ndarray, durations_ns: np.ndarray) -> np.ndarray:
        """The part of each duration that does not depend on the size, int64 (n,); 0 for items that are not operations.

        An operation that moves no data is all latency. If the sizes of reads, or writes, differ too little, they are
        all transfer.
        """
        moves = items.view(OPERATION_ROW)["length"] > 0
        found = np.where(is_operation(items), durations_ns, 0)
        for row, kind in enumerate((READ_AT, WRITE_AT)):
            mine = (items["kind"] == kind) & moves
            found[mine] = np.minimum(found[mine], round(self._line(row) or 0.0))
        return found

    def _line(self, row: int) -> float | None:
        """Latency of a kind of request, ns, by least squares over the classes; None if the sizes differ too little."""
        counts, moved, lasted = self._sums[row].T
        enough = counts > max(LEAST_SHARE * counts.sum(), 0)
        if not enough.any():
            return None
        counts, size, time = counts[enough], moved[enough] / counts[enough], lasted[enough] / counts[enough]
        if size.max() < LEAST_RATIO * size.min():
            return None
        mean_size, mean_time = np.average(size, weights=counts), np.average(time, weights=counts)
        slope = np.average((size - mean_size) * (time - mean_time), weights=counts) / np.average(
            (size - mean_size) ** 2, weights=counts
        )
        return float(np.clip(mean_time - max(slope, 0.0) * mean_size, 0.0, None))
