"""The counters that Darshan would have kept of one rank's operations, for POSIX, STDIO and MPI-IO.

Meaning of the counters: darshan-{posix,stdio,mpiio}-log-format.h and the RECORD macros in the .c files of these names.
Darshan updates them when a call returns, so operations count in the order of their end. Counters that operations do not
show (mode, memory alignment) are 0, or -1 where Darshan uses that for "not collected". Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dxt_replay.profiler_merge.darshan.counter_layouts import NEWEST
from dxt_replay.profiler_merge.export.darshan_common_values import TOP, common_values
from dxt_replay.profiler_merge.export.darshan_rows import RENAME, RENAMED, is_one_of
from dxt_replay.traces.schema import APIS, OPS, READ, WRITE
from dxt_replay.traces.stable_order import runs, stable_order
from dxt_replay.traces.units import NS_PER_S

VERSIONS = {"POSIX": 4, "MPI-IO": 3, "STDIO": 2}
"""Newest version of each module that is written."""

APIS_OF_MODULE = {
    "POSIX": (APIS.index("POSIX"),),
    "MPI-IO": (APIS.index("MPIIO"), APIS.index("MPIIO_COLL")),
    "STDIO": (APIS.index("STDIO"),),
}

UNKNOWN_ALIGNMENT = -1

_OPEN, _CLOSE, _STAT, _SYNC, _SEEK = (OPS.index(name) for name in ("open", "close", "stat", "sync", "seek"))
_COLLECTIVE = APIS.index("MPIIO_COLL")
_SIZE_BOUNDS = np.array([100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30])
_SIZE_NAMES = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
_NEVER = np.iinfo(np.int64).min
_JUST_AFTER_ZERO = np.nextafter(0.0, 1.0)

Values = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleRows:
    """The operations of one rank in one module, by file, and within a file in the order of their end.

    `rows`: of ROW; `mine[name]` is a column of them, contiguous. `file`: of each row, index into `file_ids`.
    """

    rows: np.ndarray
    file: np.ndarray
    file_ids: np.ndarray
    _columns: dict[str, np.ndarray] = field(default_factory=dict)
    _of: dict[tuple[int, ...], ModuleRows] = field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            self._columns[name] = np.ascontiguousarray(self.rows[name])
        return self._columns[name]

    @property
    def files(self) -> int:
        """Number of files."""
        return len(self.file_ids)

    def of(self, *ops: int) -> ModuleRows:
        """The operations of these kinds, with the same numbering of files."""
        if ops not in self._of:
            chosen = is_one_of(self["op"], ops)
            if chosen.all():
                return self
            place = np.flatnonzero(chosen)
            self._of[ops] = ModuleRows(rows=self.rows.take(place), file=self.file[place], file_ids=self.file_ids)
        return self._of[ops]


def rows_of_module(rows: np.ndarray, module: str) -> ModuleRows:
    """The operations among `rows` that belong to a module of VERSIONS."""
    own = is_one_of(np.ascontiguousarray(rows["api"]), APIS_OF_MODULE[module])
    mine = rows if own.all() else rows.take(np.flatnonzero(own))
    file, start, end = (np.ascontiguousarray(mine[name]) for name in ("file_id", "start_ns", "end_ns"))
    if not len(mine):
        return ModuleRows(rows=mine, file=np.empty(0, dtype=np.int64), file_ids=file)
    later = (end[1:] > end[:-1]) | ((end[1:] == end[:-1]) & (start[1:] >= start[:-1]))
    if not np.all((file[1:] > file[:-1]) | ((file[1:] == file[:-1]) & later)):
        by_end = np.lexsort((start, end))
        order = by_end[stable_order(file[by_end])]
        mine, file = mine.take(order), file[order]
    firsts = runs(file)
    counts = np.diff(firsts, append=len(file))
    return ModuleRows(rows=mine, file=np.repeat(np.arange(len(firsts)), counts), file_ids=file[firsts])


def module_counters(module: str, mine: ModuleRows, alignment: np.ndarray, record_ids: np.ndarray) -> Values:
    """Counters by Darshan's name, each (m,) for the files of `mine`; those that are absent are 0.

    `alignment` int64 (m,): block size of the file system in bytes, UNKNOWN_ALIGNMENT where it is not known.
    `record_ids` uint64: of all files, by file_id.
    """
    prefix = module.replace("-", "")
    values: Values = {}
    for op, way, ways, moved in ((READ, "READ", "READS", "READ"), (WRITE, "WRITE", "WRITES", "WRITTEN")):
        values |= _transfers(prefix, mine.of(op), way, ways, moved)
    values |= _metadata(prefix, mine, record_ids)
    values[f"{prefix}_F_WRITE_TIME"] = _busy_s(mine.of(WRITE, _SYNC))
    if module == "POSIX":
        values |= _posix_only(mine, alignment)
    elif module == "MPI-IO":
        values |= _mpiio_only(mine)
    return values


def encode_counters(module: str, record_ids: np.ndarray, rank: int, values: Mapping[str, np.ndarray]) -> bytes:
    """The decompressed bytes of one record per file: `record_ids` uint64 (m,), `values` as `module_counters`."""
    layout = NEWEST[module]
    unknown = values.keys() - {*layout.counters, *layout.fcounters}
    assert not unknown, f"{module} has no {sorted(unknown)}"
    records = np.zeros(
        len(record_ids),
        dtype=[
            ("id", "<u8"),
            ("rank", "<i8"),
            ("counters", "<i8", (len(layout.counters),)),
            ("fcounters", "<f8", (len(layout.fcounters),)),
        ],
    )
    records["id"], records["rank"] = record_ids, rank
    for part, names in (("counters", layout.counters), ("fcounters", layout.fcounters)):
        for place, name in enumerate(names):
            if name in values:
                records[part][:, place] = values[name]
    return records.tobytes()


def _transfers(prefix: str, mine: ModuleRows, way: str, ways: str, moved: str) -> Values:
    """The counters of one direction that all modules share."""
    length = mine["length"]
    start_s, end_s = _first_and_last_s(mine)
    values = {
        f"{prefix}_BYTES_{moved}": _sums(mine, length),
        f"{prefix}_F_{way}_TIME": _busy_s(mine),
        f"{prefix}_F_{way}_START_TIMESTAMP": start_s,
        f"{prefix}_F_{way}_END_TIMESTAMP": end_s,
    }
    if prefix != "MPIIO":
        values[f"{prefix}_{ways}"] = _counts(mine)
        last_byte = np.maximum(mine["offset"], 0) + length - 1
        values[f"{prefix}_MAX_BYTE_{moved}"] = np.maximum(_reduced(np.maximum, mine, last_byte, 0), 0)
    if prefix != "STDIO":
        infix = "_AGG" if prefix == "MPIIO" else ""
        bins = np.searchsorted(_SIZE_BOUNDS, length)
        counts = np.bincount(mine.file * len(_SIZE_NAMES) + bins, minlength=mine.files * len(_SIZE_NAMES))
        for name, column in zip(_SIZE_NAMES, counts.reshape(mine.files, len(_SIZE_NAMES)).T, strict=True):
            values[f"{prefix}_SIZE_{way}{infix}_{name}"] = column
        values |= _slowest(prefix, mine, way)
    return values


def _slowest(prefix: str, mine: ModuleRows, way: str) -> Values:
    """The longest operation of each file; of equal ones the first to end. None if it took no time."""
    duration = mine["end_ns"] - mine["start_ns"]
    longest = _reduced(np.maximum, mine, duration, 0)
    size = np.zeros(mine.files, dtype=np.int64)
    candidates = np.flatnonzero((duration == longest[mine.file]) & (duration > 0))
    if len(candidates):
        candidates = candidates[runs(mine.file[candidates])]
        size[mine.file[candidates]] = mine["length"][candidates]
    return {f"{prefix}_F_MAX_{way}_TIME": longest / NS_PER_S, f"{prefix}_MAX_{way}_TIME_SIZE": size}


def _metadata(prefix: str, mine: ModuleRows, record_ids: np.ndarray) -> Values:
    """Opens, closes and their times. A file that was used without a recorded open counts as opened once, around its
    use."""
    data, opens, closes = mine.of(READ, WRITE), mine.of(_OPEN), mine.of(_CLOSE)
    used_s, unused_s = _first_and_last_s(data)
    values: Values = {f"{prefix}_F_META_TIME": _busy_s(mine.of(_OPEN, _CLOSE, _STAT, _SEEK, RENAME))}
    none = (_counts(data) > 0) & (_counts(opens) + _counts(closes) == 0)
    for name, rows, fallback in (("OPEN", opens, used_s), ("CLOSE", closes, unused_s)):
        start_s, end_s = _first_and_last_s(rows)
        values[f"{prefix}_F_{name}_START_TIMESTAMP"] = np.where(none, fallback, start_s)
        values[f"{prefix}_F_{name}_END_TIMESTAMP"] = np.where(none, fallback, end_s)
    counted = np.where(none, 1, _counts(opens))
    values[f"{prefix}_INDEP_OPENS" if prefix == "MPIIO" else f"{prefix}_OPENS"] = counted
    syncs = {"POSIX": "POSIX_FSYNCS", "STDIO": "STDIO_FLUSHES", "MPIIO": "MPIIO_SYNCS"}[prefix]
    values[syncs] = _counts(mine.of(_SYNC))
    if prefix != "MPIIO":
        values[f"{prefix}_SEEKS"] = _counts(mine.of(_SEEK))
    if prefix == "POSIX":
        renamed = mine.of(RENAMED)
        old_name = np.zeros(mine.files, dtype=np.int64)
        # the first of them, so it is set last
        old_name[renamed.file[::-1]] = record_ids.view(np.int64)[renamed["other_file_id"][::-1]]
        values["POSIX_STATS"] = _counts(mine.of(_STAT))
        values["POSIX_RENAME_SOURCES"] = _counts(mine.of(RENAME))
        values["POSIX_RENAME_TARGETS"] = _counts(renamed)
        values["POSIX_RENAMED_FROM"] = old_name
    return values


def _posix_only(mine: ModuleRows, alignment: np.ndarray) -> Values:
    """Order of accesses, alignment, common sizes and strides."""
    data = mine.of(READ, WRITE)
    offset, length, write = data["offset"], data["length"], data["op"] == WRITE
    before = _last_bytes(mine, data)
    further = offset > before
    values = {
        "POSIX_SEQ_READS": _sums(data, further & ~write),
        "POSIX_SEQ_WRITES": _sums(data, further & write),
        "POSIX_CONSEC_READS": _sums(data, (offset == before + 1) & ~write),
        "POSIX_CONSEC_WRITES": _sums(data, (offset == before + 1) & write),
    }
    stride = np.where((offset > 0) & further & (before != 0), offset - before - 1, 0)
    switches = np.append(False, (write[1:] != write[:-1]) & (data.file[1:] == data.file[:-1]))[: len(write)]
    misaligned = (alignment[data.file] > 0) & (offset % np.maximum(alignment[data.file], 1) != 0)
    none = np.full(data.files, UNKNOWN_ALIGNMENT)
    return (
        values
        | _common("POSIX_STRIDE", "STRIDE", data, stride)
        | _common("POSIX_ACCESS", "ACCESS", data, length)
        | {
            "POSIX_RW_SWITCHES": _sums(data, switches),
            "POSIX_FILE_ALIGNMENT": alignment,
            "POSIX_FILE_NOT_ALIGNED": np.where(alignment > 0, _sums(data, misaligned), none),
            "POSIX_MEM_ALIGNMENT": none,
            "POSIX_MEM_NOT_ALIGNED": none,
            "POSIX_MMAPS": none,
        }
    )


def _last_bytes(mine: ModuleRows, data: ModuleRows) -> np.ndarray:
    """int64 by row of `data`: last byte of the previous read, or write, of its file; 0 after an open."""
    op = mine["op"]
    opens = np.cumsum(op == _OPEN, dtype=np.int32)[is_one_of(op, (READ, WRITE))]
    before = np.zeros(len(data.rows), dtype=np.int64)
    for way in (READ, WRITE):
        own = np.flatnonzero(data["op"] == way)
        previous, following = own[:-1], own[1:]
        goes_on = (data.file[following] == data.file[previous]) & (opens[following] == opens[previous])
        last = data["offset"][previous] + data["length"][previous] - 1
        before[following] = np.where(goes_on, last, 0)
    return before


def _mpiio_only(mine: ModuleRows) -> Values:
    """Independent and collective operations separately; common sizes."""
    data = mine.of(READ, WRITE)
    collective, write = data["api"] == _COLLECTIVE, data["op"] == WRITE
    switches = np.append(False, (write[1:] != write[:-1]) & (data.file[1:] == data.file[:-1]))[: len(write)]
    return {
        "MPIIO_INDEP_READS": _sums(data, ~collective & ~write),
        "MPIIO_COLL_READS": _sums(data, collective & ~write),
        "MPIIO_INDEP_WRITES": _sums(data, ~collective & write),
        "MPIIO_COLL_WRITES": _sums(data, collective & write),
        "MPIIO_RW_SWITCHES": _sums(data, switches),
    } | _common("MPIIO_ACCESS", "ACCESS", data, data["length"])


def _common(prefix: str, what: str, data: ModuleRows, value: np.ndarray) -> Values:
    found, counts = common_values(data.file, value, data.files)
    named: Values = {}
    for place in range(TOP):
        named[f"{prefix}{place + 1}_{what}"] = found[:, place]
        named[f"{prefix}{place + 1}_COUNT"] = counts[:, place]
    return named


def _counts(mine: ModuleRows) -> np.ndarray:
    return np.bincount(mine.file, minlength=mine.files)


def _sums(mine: ModuleRows, values: np.ndarray) -> np.ndarray:
    return _reduced(np.add, mine, values.astype(np.int64), 0)


def _reduced(operation: np.ufunc, mine: ModuleRows, values: np.ndarray, empty: int) -> np.ndarray:
    """int64 (m,): `operation` over the values of each file, `empty` for a file without any."""
    out = np.full(mine.files, empty, dtype=np.int64)
    if len(values):
        firsts = runs(mine.file)
        out[mine.file[firsts]] = operation.reduceat(values, firsts)
    return out


def _busy_s(mine: ModuleRows) -> np.ndarray:
    """Time in operations, without time that earlier-ending ones already cover (DARSHAN_TIMER_INC_NO_OVERLAP)."""
    start, end = mine["start_ns"], mine["end_ns"]
    before = np.full(len(end), _NEVER)
    same = mine.file[1:] == mine.file[:-1]
    before[1:][same] = end[:-1][same]
    return _sums(mine, end - np.maximum(start, before)) / NS_PER_S


def _first_and_last_s(mine: ModuleRows) -> tuple[np.ndarray, np.ndarray]:
    """First start and last end of each file; 0 means none, so a real time is never 0."""
    some = _counts(mine) > 0
    first = _reduced(np.minimum, mine, mine["start_ns"], 0) / NS_PER_S
    last = _reduced(np.maximum, mine, mine["end_ns"], 0) / NS_PER_S
    return (
        np.where(some & (first == 0), _JUST_AFTER_ZERO, first),
        np.where(some & (last == 0), _JUST_AFTER_ZERO, last),
    )
