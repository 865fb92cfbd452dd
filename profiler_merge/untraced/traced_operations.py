"""The traced operations of a batch of processes, and which counted files they are of. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiler_merge.untraced.metadata_rows import FileOperations, no_operations
from profiler_merge.untraced.rank_counters import CountedFiles
from traces.schema import APIS

POSIX, MPIIO, COLLECTIVE = (APIS.index(name) for name in ("POSIX", "MPIIO", "MPIIO_COLL"))
APIS_OF_MODULE = {"POSIX": (POSIX,), "STDIO": (APIS.index("STDIO"),), "MPI-IO": (MPIIO, COLLECTIVE)}
"""Codes of the interfaces whose operations a module counts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedRows:
    """Traced operations of a batch of processes, by process and start; (n,), `record_id` uint64, `is_write` bool, else
    integers. `process`: the place of the process in the batch, ascending."""

    process: np.ndarray
    record_id: np.ndarray
    api: np.ndarray
    is_write: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    lane: np.ndarray


class FilePlaces:
    """Finds the files of a batch of processes by process and record id: the first one where several have it."""

    def __init__(self, files: CountedFiles) -> None:
        self._records = np.unique(files.record_id)
        keys = self._keys(files.process, np.searchsorted(self._records, files.record_id))
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def find(self, process: np.ndarray, record_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of the file of each row (any place where there is none), and whether there is one (bool)."""
        if not len(self._sorted):
            return np.zeros(len(process), dtype=np.int64), np.zeros(len(process), dtype=bool)
        code = np.minimum(np.searchsorted(self._records, record_id), len(self._records) - 1)
        keys = self._keys(process, code)
        at = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        return self._order[at], (self._records[code] == record_id) & (self._sorted[at] == keys)

    def _keys(self, process: np.ndarray, code: np.ndarray) -> np.ndarray:
        return np.asarray(process * len(self._records) + code)


def operations_of(traced: TracedRows, files: CountedFiles, module: str = "POSIX") -> tuple[FileOperations, np.ndarray]:
    """The traced operations of counted files of a module, by file and start, and which rows of `traced` they are."""
    own = np.flatnonzero(np.isin(traced.api, APIS_OF_MODULE[module]))
    if not len(files) or not len(own):
        return no_operations(), np.empty(0, dtype=np.int64)
    file, known = FilePlaces(files).find(traced.process[own], traced.record_id[own])
    rows, file = own[known], file[known]
    # Stable, and the rows are in the order of their start.
    order = np.argsort(file, kind="stable")
    rows, file = rows[order], file[order]
    return (
        FileOperations(
            file=file,
            start=traced.start_ns[rows],
            end=traced.end_ns[rows],
            offset=traced.offset[rows],
            length=traced.length[rows],
            is_write=traced.is_write[rows],
        ),
        rows,
    )
