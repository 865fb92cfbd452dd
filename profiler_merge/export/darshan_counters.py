"""The counters that Darshan would have kept of one rank's operations, at POSIX, MPI-IO and STDIO.

Meaning of the counters: darshan-{posix,stdio,mpiio}-log-format.h and the RECORD macros in the .c files of these names.
Darshan updates them when a call returns, so operations count in the order of their end. What operations do not show
(mode, alignment of memory) and what the log does not keep (common sizes and strides, alignment of files) is 0, or -1
where Darshan uses that for "not collected".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dxt_replay.profiler_merge.darshan.counter_layouts import NEWEST
from dxt_replay.traces.schema import APIS, OPS, READ, WRITE
from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.units import NS_PER_S

VERSIONS = {"POSIX": 4, "MPI-IO": 3, "STDIO": 2}
"""Newest version of each module that is written."""

MODULE_OF_API = {"POSIX": "POSIX", "MPIIO": "MPI-IO", "MPIIO_COLL": "MPI-IO", "STDIO": "STDIO"}
"""Interfaces whose operations a log counts."""

Columns = Mapping[str, np.ndarray]
"""`file` (place among the files of the table), `op`, `api`, `offset`, `length`, `start_ns` and `end_ns` (n,) of
operations, by file, and within a file in the order of their end."""

_OPEN, _CLOSE, _STAT, _SYNC, _SEEK, _RENAME = (
    OPS.index(name) for name in ("open", "close", "stat", "sync", "seek", "rename")
)
_COLLECTIVE = APIS.index("MPIIO_COLL")
_SIZE_BOUNDS = np.array([100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30])
_NOT_COLLECTED = ("MEM_ALIGNMENT", "MEM_NOT_ALIGNED", "FILE_ALIGNMENT", "FILE_NOT_ALIGNED", "MMAPS")
_JUST_AFTER_ZERO = np.nextafter(0.0, 1.0)


def new_records(module: str, ids: np.ndarray, rank: int) -> np.ndarray:
    """Records (m,) with the fields `id`, `rank` and all counters by Darshan's names, each 0."""
    layout = NEWEST[module]
    counters = [*((name, "<i8") for name in layout.counters), *((name, "<f8") for name in layout.fcounters)]
    records = np.zeros(len(ids), dtype=[("id", "<u8"), ("rank", "<i8"), *counters])
    records["id"], records["rank"] = ids, rank
    if module == "POSIX":
        for name in _NOT_COLLECTED:
            records[f"POSIX_{name}"] = -1
    return records


class Counters:
    """The records of files (m,) that one rank used at one module, while its operations come.

    Order and overlap are those of the operations of one `add`, and of its last one with the next."""

    def __init__(self, module: str, ids: np.ndarray, rank: int) -> None:
        self._module, self._prefix = module, module.replace("-", "")
        self.records = new_records(module, ids, rank)
        self.is_used = np.zeros(len(ids), dtype=bool)
        self._last: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        """A counter of all records, (m,), by its name without the module; changes are kept."""
        column: np.ndarray = self.records[f"{self._prefix}_{name}"]
        return column

    def add(self, rows: Columns) -> None:
        """Count operations."""
        self.is_used[rows["file"]] = True
        op = rows["op"]
        for code, way, moved in ((READ, "READ", "READ"), (WRITE, "WRITE", "WRITTEN")):
            if (op == code).any():
                self._add_transfers(_only(rows, op == code), way, moved)
            if self._module == "POSIX":
                self._add_order(_only(rows, (op == code) | (op == _OPEN)), code, way)
        self._add_busy("F_READ_TIME", _only(rows, op == READ))
        self._add_busy("F_WRITE_TIME", _only(rows, (op == WRITE) | (op == _SYNC)))
        self._add_busy("F_META_TIME", _only(rows, np.isin(op, (_OPEN, _CLOSE, _STAT, _SEEK, _RENAME))))
        syncs = {"POSIX": "FSYNCS", "STDIO": "FLUSHES", "MPI-IO": "SYNCS"}[self._module]
        counted = {self._opens: _OPEN, syncs: _SYNC}
        if self._module != "MPI-IO":
            counted["SEEKS"] = _SEEK
        if self._module == "POSIX":
            counted |= {"STATS": _STAT, "RENAME_SOURCES": _RENAME}
        for name, code in counted.items():
            self._add(name, rows["file"][op == code])
        for code, name in ((_OPEN, "OPEN"), (_CLOSE, "CLOSE")):
            self._add_times(name, _only(rows, op == code))
        if self._module != "STDIO":
            data = _only(rows, (op == READ) | (op == WRITE))
            before = self._previous("op", data["file"], data["op"], -1)
            self._add("RW_SWITCHES", data["file"][(before >= 0) & (before != data["op"])])

    def add_new_names(self, file: np.ndarray, old: np.ndarray) -> None:
        """Count renames at their new name: `file` (n,), and the record ids of the old names."""
        self.is_used[file] = True
        np.add.at(self["RENAME_TARGETS"], file, 1)
        # the first of several
        first = np.unique(file, return_index=True)[1]
        none = self["RENAMED_FROM"][file[first]] == 0
        self["RENAMED_FROM"][file[first[none]]] = old.view(np.int64)[first[none]]

    def used(self) -> np.ndarray:
        """The records of all files with operations.

        A file that was used without a recorded open counts as opened once, around its use."""
        moved = [f"{way}_{end}" for end in ("START", "END") for way in ("READ", "WRITE")]
        first_read, first_write, last_read, last_write = (self[f"F_{name}_TIMESTAMP"] for name in moved)
        some = (first_read != 0) | (first_write != 0)
        none = some & (self[self._opens] == 0) & (self["F_CLOSE_START_TIMESTAMP"] == 0)
        self[self._opens][none] = 1
        first = np.where((first_write == 0) | ((first_read != 0) & (first_read < first_write)), first_read, first_write)
        last = np.where((last_write == 0) | ((last_read != 0) & (last_read > last_write)), last_read, last_write)
        for name, moment in (("OPEN", first), ("CLOSE", last)):
            for end in ("START", "END"):
                self[f"F_{name}_{end}_TIMESTAMP"][none] = moment[none]
        return self.records[self.is_used]

    @property
    def _opens(self) -> str:
        return "INDEP_OPENS" if self._module == "MPI-IO" else "OPENS"

    def _add_transfers(self, rows: Columns, way: str, moved: str) -> None:
        """The counters of one direction that do not depend on the order."""
        file, length = rows["file"], rows["length"]
        self._reduce(f"BYTES_{moved}", np.add, file, length)
        self._add_times(way, rows)
        if self._module == "MPI-IO":
            collective = rows["api"] == _COLLECTIVE
            self._add(f"COLL_{way}S", file[collective])
            self._add(f"INDEP_{way}S", file[~collective])
        else:
            self._add(f"{way}S", file)
            self._reduce(f"MAX_BYTE_{moved}", np.maximum, file, np.maximum(rows["offset"], 0) + length - 1)
        if self._module != "STDIO":
            names = [name for name in self.records.dtype.names or () if name.startswith(f"{self._prefix}_SIZE_{way}_")]
            sizes = np.searchsorted(_SIZE_BOUNDS, length)
            for place, name in enumerate(names):
                self._add(name.removeprefix(f"{self._prefix}_"), file[sizes == place])
            self._add_slowest(rows, way)

    def _add_slowest(self, rows: Columns, way: str) -> None:
        """The longest operation of each file; of equal ones the first to end. None if it took no time."""
        file, seconds = rows["file"], (rows["end_ns"] - rows["start_ns"]) / NS_PER_S
        before = self[f"F_MAX_{way}_TIME"].copy()
        self._reduce(f"F_MAX_{way}_TIME", np.maximum, file, seconds)
        longest = self[f"F_MAX_{way}_TIME"]
        found = np.flatnonzero((seconds == longest[file]) & (longest > before)[file])
        found = found[runs(file[found])]
        self[f"MAX_{way}_TIME_SIZE"][file[found]] = rows["length"][found]

    def _add_order(self, rows: Columns, code: int, way: str) -> None:
        """Whether accesses go on, `rows` with the opens, at which Darshan begins anew."""
        last_byte = np.where(rows["op"] == code, rows["offset"] + rows["length"] - 1, 0)
        before = self._previous(way, rows["file"], last_byte, 0)
        moved = rows["op"] == code
        self._add(f"SEQ_{way}S", rows["file"][moved & (rows["offset"] > before)])
        self._add(f"CONSEC_{way}S", rows["file"][moved & (rows["offset"] == before + 1)])

    def _add_busy(self, name: str, rows: Columns) -> None:
        """Time in operations, without time that earlier-ending ones already cover (DARSHAN_TIMER_INC_NO_OVERLAP)."""
        before = self._previous(name, rows["file"], rows["end_ns"], np.iinfo(np.int64).min)
        self._reduce(name, np.add, rows["file"], (rows["end_ns"] - np.maximum(rows["start_ns"], before)) / NS_PER_S)

    def _add_times(self, name: str, rows: Columns) -> None:
        """First start and last end; 0 means none, so a real time is never 0."""
        for end, operation in (("START", np.minimum), ("END", np.maximum)):
            seconds = rows[f"{end.lower()}_ns"] / NS_PER_S
            seconds[seconds == 0] = _JUST_AFTER_ZERO
            column = self[f"F_{name}_{end}_TIMESTAMP"]
            firsts = runs(rows["file"])
            if len(firsts):
                file, found = rows["file"][firsts], operation.reduceat(seconds, firsts)
                column[file] = np.where(column[file] == 0, found, operation(column[file], found))

    def _add(self, name: str, file: np.ndarray) -> None:
        """Count each element of `file`, which ascends."""
        firsts = runs(file)
        self[name][file[firsts]] += np.diff(firsts, append=len(file))

    def _reduce(self, name: str, operation: np.ufunc, file: np.ndarray, values: np.ndarray) -> None:
        firsts = runs(file)
        if len(firsts):
            column = self[name]
            column[file[firsts]] = operation(column[file[firsts]], operation.reduceat(values, firsts))

    def _previous(self, name: str, file: np.ndarray, values: np.ndarray, none: int) -> np.ndarray:
        """The value before each of its file, in this `add` or an earlier one; `none` for the first."""
        last = self._last.setdefault(name, np.full(len(self.records), none, dtype=np.int64))
        before = np.concatenate((values[:1], values[:-1])).astype(np.int64)
        firsts = runs(file)
        before[firsts] = last[file[firsts]]
        ends = np.append(firsts[1:], len(file))[: len(firsts)] - 1
        last[file[ends]] = values[ends]
        return before


def _only(rows: Columns, mask: np.ndarray) -> Columns:
    return rows if mask.all() else {name: column[mask] for name, column in rows.items()}
