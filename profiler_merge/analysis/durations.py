"""How long an operation counts as having taken: as recorded, or as VaniDL printed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import CaptureInfo

DurationRule = Callable[[OperationRows], np.ndarray]
"""Rows -> int64 ns (n,)."""

VANIDL_EXCLUDES = ("*.py*",)
"""VaniDL drops every file whose path contains ".py"."""

_PRINTED_NS = 100_000
_INSTEAD_OF_ZERO_NS = 1_000_000


def recorded_durations(rows: OperationRows) -> np.ndarray:
    """end - start, to the nanosecond."""
    return rows.duration_ns


def vanidl_durations(info: CaptureInfo) -> DurationRule:
    """The durations behind VaniDL's printed numbers: start and end to 4 decimals of a second, 0 replaced by 0.001 s.

    It reads the text of darshan-dxt-parser, so the rounding is of the log's own time: each rank's clock offset is taken
    out first. Source: hariharan-devarajan/vanidl, commit 8bad713, and `io_time` there.
    """
    return _PrintedDurations(offsets={clock.rank: clock.offset_ns for clock in info.clock})


@dataclass(frozen=True, slots=True, kw_only=True)
class _PrintedDurations:
    offsets: Mapping[int, int]

    def __call__(self, rows: OperationRows) -> np.ndarray:
        offset = self.offsets.get(rows.rank, 0)
        # A time halfway between two prints counts up, which gives the 46.40235 s that VaniDL prints for its Theta log.
        start, end = ((time - offset + _PRINTED_NS // 2) // _PRINTED_NS for time in (rows.start_ns, rows.end_ns))
        printed = (end - start) * _PRINTED_NS
        return np.where(printed == 0, _INSTEAD_OF_ZERO_NS, printed)
