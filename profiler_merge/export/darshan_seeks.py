"""Seeks that are counted by file and have no operation, for the counters of a log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.export.darshan_counters import APIS_OF_MODULE
from dxt_replay.traces.schema import OPS, codes
from dxt_replay.traces.store.reader import Capture

_SEEK = OPS.index("seek")
_NO_RANK = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountedSeeks:
    """Seeks of one module without an operation, by file_id; int64 (files,).

    first_rank, last_rank: the lowest and highest rank with operations on the file at this module.
    """

    count: np.ndarray
    first_rank: np.ndarray
    last_rank: np.ndarray

    def of(self, rank: int, file_ids: np.ndarray) -> np.ndarray:
        """int64 (m,): those to write in the records of a rank: all for the lowest rank that used the file."""
        return np.where(self.first_rank[file_ids] == rank, self.count[file_ids], 0)

    @property
    def rank_unknown(self) -> int:
        """Number of seeks on files that several ranks used."""
        return int(self.count[self.first_rank < self.last_rank].sum())


def counted_seeks(capture: Capture) -> dict[str, CountedSeeks]:
    """By module. Raises: CaptureError when the capture is damaged."""
    found = {module: _counted(capture, module) for module in ("POSIX", "STDIO")}
    if not any(seeks.count.any() for seeks in found.values()):
        return found
    for usage in capture.usages():
        api, seek = codes(usage, "api"), codes(usage, "op") == _SEEK
        rank, file, renamed, operations = (
            usage[name].to_numpy() for name in ("rank", "file_id", "other_file_id", "operations")
        )
        for module, seeks in found.items():
            mine = np.isin(api, APIS_OF_MODULE[module])
            for files, rows in ((file, mine), (renamed, mine & (renamed >= 0))):
                np.minimum.at(seeks.first_rank, files[rows], rank[rows])
                np.maximum.at(seeks.last_rank, files[rows], rank[rows])
            np.subtract.at(seeks.count, file[mine & seek], operations[mine & seek])
    for seeks in found.values():
        np.maximum(seeks.count, 0, out=seeks.count)
    return found


def _counted(capture: Capture, module: str) -> CountedSeeks:
    count = capture.files[f"{module.lower()}_seeks"].fill_null(0).to_numpy().copy()
    return CountedSeeks(
        count=count, first_rank=np.full(len(count), _NO_RANK), last_rank=np.full(len(count), -1, dtype=np.int64)
    )
