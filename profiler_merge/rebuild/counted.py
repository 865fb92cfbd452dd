"""Darshan's counters of the files of each rank, as rows of one table: what operations are rebuilt from.

A record that Darshan reduced over all ranks is dealt to them in equal shares: rank k of n gets what lies between k and
k + 1 n-ths of each number, so that the sum over the ranks is exact. Streams without a file, and the tracing's own
files, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.dxt import count_segments, read_dxt
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.traces.files import STANDARD_STREAMS, is_recorder_file
from dxt_replay.traces.stable_order import places_in_groups
from dxt_replay.traces.units import seconds_to_ns

NOT_SEEN = int(np.iinfo(np.int64).min)
"""A time that never came, or that this version of Darshan does not record."""

MODULES = ("POSIX", "STDIO")
"""Modules whose operations are rebuilt. Those of MPI-IO are not: they stand for the same data as POSIX."""

TRACE = "DXT_POSIX"
"""The module that traces the calls that POSIX counts; none traces those of STDIO."""

BOUNDS = np.array([100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30], dtype=np.int64)
"""Largest size of each bin of Darshan's histograms but the last."""

SIZES = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
WAYS = (("READ", "READS", "READ"), ("WRITE", "WRITES", "WRITTEN"))
TOP = 4

TIMES = ("open_start", "open_end", "close_start", "close_end", "first", "last")
_SHARED_OUT = ("opens", "stats", "seeks", "syncs", "meta_ns", "spent_ns")

COUNTED = np.dtype(
    [
        ("process", np.int64),
        ("record_id", np.uint64),
        ("renamed_from", np.uint64),
        ("own", np.bool_),
        ("wrote", np.bool_),
        ("share", np.int64),
        ("shares", np.int64),
        *((name, np.int64) for name in (*_SHARED_OUT[:-1], *TIMES[:-2])),
        *((name, np.int64, (2,)) for name in ("first", "last", "spent_ns", "longest_ns")),
        *((name, np.int64, (2,)) for name in ("count", "moved", "end", "seq", "consec", "traced")),
        ("sizes", np.int64, (2, len(SIZES))),
        *((name, np.int64, (TOP,)) for name in ("access", "access_count")),
        ("stride", np.int64),
        ("stride_count", np.int64),
    ]
)
"""A file of a rank at one module. Fields with two values are of reads and of writes.

process: place of the rank among those that were asked for, ascending. renamed_from: 0 if nothing got this name.
own: the record is of this rank alone, so that its times are exact; otherwise they are the first start and the last end
over all ranks. wrote: whether it was written to.
share, shares: of a reduced record, this is share number `share` of `shares` equal ones; 0 of 1 for an own one.
opens: those that opened a file (Darshan adds fileno() and dup()). syncs: fsync and fdatasync, or flushes of a stream.
*_start, first: the first start in ns; *_end, last: the last end; NOT_SEEN if there is none. meta_ns, spent_ns: time in
all operations; longest_ns: in one.
The others describe the reads and writes of the whole record: `end` is one past the highest byte; `seq` and `consec` are
-1 where the interface counts no order; access and stride are the most common ones of both directions together.
traced: how many of the counted operations a trace holds; the other fields are those of the rest.
"""

_MOST_COUNTED = 1 << 40
_MOST_BYTES = 1 << 56
_LATEST_S = 1e9
_LONGEST_S = 1e8


class RankCounters:
    """Counters of the MODULES of one log, by rank.

    fixed_rank: the rank of the log's only process, None for the log of a whole job of `ranks` ranks.
    Raises: LogError as `read_counters`.
    """

    def __init__(
        self, log: DarshanLog, ranks: int, *, fixed_rank: int | None = None, excluded: Collection[int] = ()
    ) -> None:
        self._own: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._shared: dict[str, np.ndarray] = {}
        for module in MODULES:
            of_rank, files = _counted_files(log, module, excluded)
            shared = ~files["own"] & (fixed_rank is None) & (ranks > 1)
            if fixed_rank is not None or ranks <= 1:
                of_rank = np.full(len(of_rank), fixed_rank or 0)
            order = np.flatnonzero(~shared)[np.argsort(of_rank[~shared], kind="stable")]
            self._own[module] = of_rank[order], files[order]
            reduced = files[shared]
            reduced["shares"] = ranks
            if len(reduced) and module == "POSIX" and TRACE in log.modules:
                _subtract_reduced(reduced, log)
            self._shared[module] = reduced

    @property
    def ranks_of_records(self) -> np.ndarray:
        """int64: ranks that have records of their own, ascending."""
        return np.unique(np.concatenate([ranks for ranks, _ in self._own.values()]))

    @property
    def shared_files(self) -> int:
        """Number of reduced records of the module with the most: every rank has a share of each."""
        return max(len(shared) for shared in self._shared.values())

    def operations(self, ranks: np.ndarray) -> np.ndarray:
        """float64 (r,): approximate number of operations in the counters of some ranks (ascending) over all modules."""
        found = np.zeros(len(ranks))
        for of_rank, files in self._own.values():
            reached = np.append(0.0, np.cumsum(_operations(files)))
            first, last = (np.searchsorted(of_rank, ranks, side=side) for side in ("left", "right"))
            found += reached[last] - reached[first]
        return found + sum((_operations(files) / files["shares"]).sum() for files in self._shared.values())

    def of_ranks(self, ranks: np.ndarray) -> dict[str, np.ndarray]:
        """COUNTED by module, of some ranks (ascending): each rank's own files, then its shares; on the log's clock."""
        found = {}
        for module, (of_rank, files) in self._own.items():
            first, last = (np.searchsorted(of_rank, ranks, side=side) for side in ("left", "right"))
            process = np.repeat(np.arange(len(ranks)), last - first)
            own = files[first[process] + places_in_groups(last - first)]
            own["process"] = process
            shared = self._shared[module]
            if len(shared):
                shares = np.tile(shared, len(ranks))
                shares["process"] = np.repeat(np.arange(len(ranks)), len(shared))
                shares["share"] = np.repeat(ranks, len(shared))
                for name in _SHARED_OUT:
                    shares[name] = share_of(shares[name], shares)
                shares["renamed_from"] *= (shares["share"] == 0).astype(np.uint64)
                own = np.concatenate([own, shares[shares["share"] < shares["shares"]]])
                own = own[np.argsort(own["process"], kind="stable")]
            found[module] = own
        return found


def share_of(total: np.ndarray, files: np.ndarray) -> np.ndarray:
    """What each of `files` has of a number (files,) or (files, 2) of the whole record."""
    share, shares = (files[name].reshape(-1, *[1] * (total.ndim - 1)) for name in ("share", "shares"))
    each, rest = np.divmod(total, shares)
    found: np.ndarray = each + (share + 1) * rest // shares - share * rest // shares
    return found


def _operations(files: np.ndarray) -> np.ndarray:
    """float64: how many operations of each file are counted, a close for each open."""
    parts = (2 * files["opens"], files["stats"], files["seeks"], files["syncs"], *files["count"].T, *files["traced"].T)
    return np.sum([each.astype(np.float64) for each in parts], axis=0)


def on_clock(files: np.ndarray, to_ns: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The files with all times moved by `to_ns`."""
    files = files.copy()
    for name in TIMES:
        seen = files[name] != NOT_SEEN
        files[name] = np.where(seen, to_ns(np.where(seen, files[name], 0)), NOT_SEEN)
    return files


def places_of(files: np.ndarray, process: np.ndarray, record_id: np.ndarray) -> np.ndarray:
    """int64 (n,): the row of `files` of each process and record id, the first one if there are several; -1 for none."""
    if not len(files):
        return np.full(len(process), -1)
    records, code = np.unique(files["record_id"], return_inverse=True)
    keys = files["process"] * len(records) + code
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    code = np.minimum(np.searchsorted(records, record_id), len(records) - 1)
    wanted = process * len(records) + code
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((records[code] == record_id) & (keys[place] == wanted), order[place], -1)


@lru_cache(maxsize=1 << 17)
def is_application_file(path: bytes) -> bool:
    """Whether a recorded name is that of an application's file, not of a stream or of the recording itself."""
    name = path.decode("utf-8", "replace")
    return name not in STANDARD_STREAMS and not is_recorder_file(name)


def _counted_files(log: DarshanLog, module: str, excluded: Collection[int]) -> tuple[np.ndarray, np.ndarray]:
    """Ranks (int64) and COUNTED of all records of a module that are of the application; log's clock."""
    table = read_counters(log, module, excluded)
    if table is None:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=COUNTED)
    records = np.unique(table.record_ids).tolist()
    table = table.without([each for each in records if not is_application_file(log.names.get(each, b""))])
    return table.ranks, _counted(table, module)


def _counted(table: CounterTable, module: str) -> np.ndarray:
    files = np.zeros(len(table.ranks), dtype=COUNTED)

    def count(*names: str, most: int = _MOST_COUNTED) -> np.ndarray:
        known = [table.counters[f"{module}_{name}"] for name in names if f"{module}_{name}" in table.counters]
        return sum((np.clip(values, 0, most) for values in known), np.zeros(len(files), dtype=np.int64))

    def time(name: str) -> np.ndarray:
        seconds = table.fcounters[f"{module}_F_{name}_TIMESTAMP"]
        seen = np.isfinite(seconds) & (seconds > 0) & (seconds < _LATEST_S)
        return np.where(seen, seconds_to_ns(np.where(seen, seconds, 0.0)), NOT_SEEN)

    def spent(name: str) -> np.ndarray:
        seconds = table.fcounters.get(f"{module}_F_{name}_TIME", np.zeros(len(files)))
        return seconds_to_ns(np.where((seconds > 0) & (seconds < _LONGEST_S), seconds, 0.0))

    files["record_id"], files["own"], files["shares"] = table.record_ids, table.ranks != SHARED_RANK, 1
    if "POSIX_RENAMED_FROM" in table.counters:
        source = table.counters["POSIX_RENAMED_FROM"].view(np.uint64)
        files["renamed_from"] = np.where(table.counters["POSIX_RENAME_TARGETS"] > 0, source, np.uint64(0))
    files["opens"] = np.maximum(count("OPENS") - count("FILENOS", "DUPS", "FDOPENS"), 0)
    files["stats"], files["seeks"] = count("STATS"), count("SEEKS")
    files["syncs"] = count("FSYNCS", "FDSYNCS", "FLUSHES")
    files["meta_ns"], files["wrote"] = spent("META"), count("WRITES") > 0
    for name in TIMES[:-2]:
        files[name] = time(name.upper())
    # Old versions lack the inner ends of the two windows.
    files["open_end"] = np.where(files["open_end"] == NOT_SEEN, files["open_start"], files["open_end"])
    files["close_start"] = np.where(files["close_start"] == NOT_SEEN, files["close_end"], files["close_start"])
    for way, (direction, ways, done) in enumerate(WAYS):
        files["first"][:, way], files["last"][:, way] = time(f"{direction}_START"), time(f"{direction}_END")
        files["spent_ns"][:, way], files["longest_ns"][:, way] = spent(direction), spent(f"MAX_{direction}")
        files["count"][:, way], files["moved"][:, way] = count(ways), count(f"BYTES_{done}", most=_MOST_BYTES)
        last = count(f"MAX_BYTE_{done}", most=_MOST_BYTES)
        # Reads of 0 bytes behind the end of a file have offsets, too.
        files["end"][:, way] = np.where((files["moved"][:, way] > 0) | (last > 0), last + 1, 0)
        for name in ("seq", "consec"):
            files[name][:, way] = count(f"{name.upper()}_{ways}") if module == "POSIX" else -1
        for place, size in enumerate(SIZES):
            files["sizes"][:, way, place] = count(f"SIZE_{direction}_{size}")
    for place in range(TOP):
        files["access"][:, place] = count(f"ACCESS{place + 1}_ACCESS", most=_MOST_BYTES)
        files["access_count"][:, place] = count(f"ACCESS{place + 1}_COUNT")
    files["stride"], files["stride_count"] = count("STRIDE1_STRIDE", most=_MOST_BYTES), count("STRIDE1_COUNT")
    return files


Operations = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of some operations: the row of their file, whether they are writes, and their lengths."""


def subtract(files: np.ndarray, traced: np.ndarray, operations: Callable[[np.ndarray], Operations]) -> None:
    """Take traced operations out of the counters of `files`, in place. traced: int64 (files, 2), how many there are.

    operations: those of the files in a mask, which are traced in part. Order is subtracted in proportion: the trace
    does not say which of its accesses Darshan counted as sequential.
    """
    left = np.maximum(files["count"] - traced, 0)
    some = (traced > 0) & (left > 0)
    if (partial := some.any(axis=1)).any():
        file, is_write, length = operations(partial)
        streams, bins, stream = 2 * len(files), len(SIZES), 2 * file + is_write
        known = np.bincount(stream * bins + np.searchsorted(BOUNDS, length), minlength=streams * bins)
        files["sizes"] = np.maximum(files["sizes"] - known.reshape(-1, 2, bins), 0)
        moved = np.zeros(streams, dtype=np.int64)
        np.add.at(moved, stream, length)
        files["moved"] = np.maximum(files["moved"] - moved.reshape(-1, 2), 0)
        for place in range(TOP):
            same = np.bincount(file[length == files["access"][file, place]], minlength=len(files))
            files["access_count"][:, place] = np.maximum(files["access_count"][:, place] - same, 0)
        for name in ("seq", "consec"):
            part = files[name] * left // np.maximum(files["count"], 1)
            files[name] = np.where(some & (files[name] > 0), part, files[name])
        files["stride_count"][partial] = 0
    files["count"] = left
    files["traced"] += traced


def _subtract_reduced(files: np.ndarray, log: DarshanLog) -> None:
    """As `subtract`, for what the trace of all ranks holds of reduced records."""

    def place(record_ids: np.ndarray) -> np.ndarray:
        return places_of(files, np.zeros(len(record_ids), dtype=np.int64), record_ids)

    def operations(partial: np.ndarray) -> Operations:
        parts = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=bool), np.empty(0, dtype=np.int64))]
        for block in read_dxt(log, TRACE):
            file = place(block.record_ids)[block.record]
            mine = (file >= 0) & partial[file]
            parts.append((file[mine], block.is_write[mine], block.length[mine].astype(np.int64)))
        file, is_write, length = (np.concatenate(column) for column in zip(*parts, strict=True))
        return file, is_write, length

    traced = np.zeros((len(files), 2), dtype=np.int64)
    for records, writes, reads in count_segments(log, TRACE):
        file = place(records)
        np.add.at(traced, file[file >= 0], np.column_stack([reads, writes])[file >= 0])
    subtract(files, traced, operations)
