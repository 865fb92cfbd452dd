"""Rebuilds reads and writes that no trace holds from the counters of one interface: joins the parts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

import numpy as np

from dxt_replay.profiler_merge.untraced.access_sizes import SizedAccesses, access_sizes
from dxt_replay.profiler_merge.untraced.counted_order import Patterns, PlacedAccesses, place_accesses
from dxt_replay.profiler_merge.untraced.file_operations import (
    FileOperations,
    MadeRows,
    concatenated,
    made_rows,
    no_rows,
)
from dxt_replay.profiler_merge.untraced.rank_counters import NOT_SEEN, CountedFiles
from dxt_replay.profiler_merge.untraced.timeline_slots import numbered
from dxt_replay.profiler_merge.untraced.transfers import Transfers, counted_again, joined_transfers
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import OPS, READ, WRITE
from dxt_replay.traces.units import format_bytes

RECONSTRUCT_LIMIT = 10_000_000
"""Most reads and writes of one process that are rebuilt; each takes some 400 bytes of memory."""

_OPEN = OPS.index("open")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountedData:
    """The counters of one process's reads and writes at one interface.

    `own`: of its own records, the first files of its `CountedFiles`. `shared`: its accesses of the reduced records,
    which follow there (None without any), with their `patterns`; streams count from the first of these records.
    `reduced`: the counters of these records, over all ranks.
    """

    own: Transfers
    shared: SizedAccesses | None
    patterns: Patterns | None
    reduced: Transfers | None = None

    @property
    def files(self) -> int:
        """Number of files, own and reduced."""
        return len(self.own) + (0 if self.reduced is None else len(self.reduced))

    @property
    def dealt(self) -> int:
        """Number of its accesses of reduced records."""
        return 0 if self.shared is None else len(self.shared)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountedBatch:
    """The counters of several processes, with one file per row: of each process first its own, then its reduced files.

    `parts`: by process; all have the same reduced records, or none.
    `own` (bool) and `process`, the index in `parts`: by file. `first`: first file of each process.
    `wanted`: the counters of all files.
    """

    parts: Sequence[CountedData]
    own: np.ndarray
    process: np.ndarray
    first: np.ndarray
    wanted: Transfers

    @classmethod
    def of(cls, parts: Sequence[CountedData]) -> CountedBatch:
        """The files of all parts, one part after the other."""
        counts = np.array([part.files for part in parts])
        process, number = numbered(counts)
        owned = np.array([len(part.own) for part in parts])
        own = number < owned[process]
        transfers, reduced = joined_transfers([part.own for part in parts]), parts[0].reduced
        if reduced is not None and len(reduced):
            place = np.where(own, np.cumsum(own) - 1, len(transfers) + number - owned[process])
            transfers = joined_transfers([transfers, reduced]).select(place)
        return cls(parts=parts, own=own, process=process, first=np.cumsum(counts) - counts, wanted=transfers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataRows:
    """The rows by stream and in their order. `begins`: bool by row, the file may have been opened before it."""

    rows: MadeRows
    begins: np.ndarray


def untraced_part(transfers: Transfers, traced: np.ndarray, operations: FileOperations | None) -> Transfers:
    """The counters minus the traced operations; nothing is left of a file that was traced completely.

    `traced`: number of operations of each stream. `operations`: the traced ones; None if no file is traced in part.
    """
    missing = np.maximum(transfers.count - traced, 0)
    if not traced.any():
        return transfers
    partial: np.ndarray = (missing > 0) & (traced > 0)
    left = {name: getattr(transfers, name).copy() for name in ("moved", "consec", "seq", "sizes", "access_count")}
    files = np.flatnonzero(partial.reshape(-1, 2).any(axis=1))
    if operations is not None and len(files):
        mine = np.isin(operations.file, files)
        file, length = operations.file[mine], operations.length[mine]
        known = counted_again(
            file,
            operations.is_write[mine],
            operations.offset[mine],
            length,
            np.zeros(len(file), np.int64),
            transfers,
        )
        for name in ("moved", "consec", "seq", "sizes"):
            left[name] = np.where(left[name] < 0, left[name], np.maximum(left[name] - getattr(known, name), 0))
        left["access_count"] = np.maximum(left["access_count"] - known.access_count, 0)
    nothing = missing == 0
    for name in ("moved", "consec", "seq"):
        left[name] = np.where(nothing, 0, left[name])
    left["sizes"][nothing] = 0
    changed = np.repeat(partial.reshape(-1, 2).any(axis=1), transfers.stride.shape[1]).reshape(transfers.stride.shape)
    stride_count = np.where(changed, 0, transfers.stride_count)
    return Transfers(
        count=missing, end=transfers.end, access=transfers.access, stride=transfers.stride, stride_count=stride_count,
        **left,
    )  # fmt: skip


@cache
def no_data() -> DataRows:
    """No reads or writes."""
    return DataRows(rows=no_rows(), begins=np.empty(0, dtype=bool))


def joined_rows(parts: Sequence[tuple[np.ndarray, DataRows]]) -> DataRows:
    """The rows of all parts, one after the other; each part comes with the numbers of its files here."""
    parts = [part for part in parts if len(part[1].rows)]
    if not parts:
        return no_data()
    rows = [replace(part.rows, file=numbers[part.rows.file]) for numbers, part in parts]
    return DataRows(rows=concatenated(rows), begins=np.concatenate([part.begins for _, part in parts]))


def with_rebuilt(operations: FileOperations, made: DataRows) -> FileOperations:
    """Traced and rebuilt reads and writes together, by file and start."""
    if not len(made.rows):
        return operations
    rows = made.rows
    pairs = {
        "file": rows.file, "start": rows.start, "end": rows.end, "offset": rows.offset, "length": rows.length,
        "is_write": rows.op == WRITE, "held": ~made.begins,
    }  # fmt: skip
    columns = {
        name: np.concatenate((getattr(operations, name), made)) for name, made in pairs.items() if name != "held"
    }
    columns["held"] = np.concatenate((np.zeros(len(operations), dtype=bool), pairs["held"]))
    order = np.lexsort((columns["start"], columns["file"]))
    return FileOperations(**{name: values[order] for name, values in columns.items()})


def recounted(wanted: Transfers, operations: FileOperations, metadata: MadeRows) -> Transfers:
    """The counters of `wanted` recounted for `operations`, between the opens among `metadata`, in the order of their
    end."""
    opens = metadata.op == _OPEN
    none = np.zeros(int(opens.sum()), dtype=np.int64)
    file = np.concatenate((operations.file, metadata.file[opens]))
    end = np.concatenate((operations.end, metadata.end[opens]))
    start = np.concatenate((operations.start, metadata.start[opens]))
    order = np.lexsort((start, end, file))
    is_open = (np.arange(len(file)) >= len(operations))[order]
    opened = np.cumsum(is_open)
    columns = [
        np.concatenate((values, none))[order][~is_open]
        for values in (operations.file, operations.is_write, operations.offset, operations.length)
    ]
    return counted_again(
        columns[0], columns[1].astype(bool), columns[2], columns[3], opened[~is_open], wanted
    )  # fmt: skip


def data_rows(
    files: CountedFiles,
    counted: CountedBatch,
    operations: FileOperations,
    unknown_ns: np.ndarray,
    paths: Mapping[int, bytes] = MappingProxyType({}),
) -> DataRows:
    """The reads and writes of `files` that are not among the traced `operations`, as rows that name these files.

    `files`: those of `counted`. `unknown_ns` (files,): time for the rows of a file without times. `paths`: by record
    id, for the error.
    Raises: LogError when there are more than RECONSTRUCT_LIMIT of one process.
    """
    if not len(files):
        return no_data()
    accesses, patterns = _accesses(files, counted, operations, paths)
    if not len(accesses):
        return no_data()
    placed = place_accesses(accesses, patterns, np.repeat(counted.process, 2))
    wanted = counted.wanted
    offset = np.minimum(placed.offset, np.maximum(patterns.high[placed.stream] - placed.size, 0))
    offset = np.where(wanted.consec[placed.stream] < 0, offset, placed.offset)
    start, end = _times(files, placed, operations, unknown_ns)
    rows = made_rows(
        np.where(placed.stream % 2, WRITE, READ), placed.stream // 2, start, end,
        offset=offset, length=placed.size,
    )  # fmt: skip
    return DataRows(rows=rows, begins=placed.begins)


def _accesses(
    files: CountedFiles,
    counted: CountedBatch,
    operations: FileOperations,
    paths: Mapping[int, bytes],
) -> tuple[SizedAccesses, Patterns]:
    """The accesses to rebuild, by stream of `files` and falling size, and the known facts about their order."""
    own = np.flatnonzero(counted.own)
    streams = np.stack((2 * own, 2 * own + 1), axis=1).ravel()
    left = joined_transfers([part.own for part in counted.parts])
    traced = np.bincount(2 * operations.file + operations.is_write, minlength=2 * len(files))[streams]
    left = untraced_part(left, traced, _of_own(operations, counted.own))
    dealt = np.array([part.dealt for part in counted.parts])
    planned = np.bincount(counted.process[streams // 2], weights=left.count, minlength=len(dealt)) + dealt
    if planned.max() > RECONSTRUCT_LIMIT:
        raise LogError(_too_many(files, counted, left, planned, paths))
    accesses, patterns = access_sizes(left), own_patterns(left, files.opens[own])
    accesses = SizedAccesses(stream=streams[accesses.stream], size=accesses.size)
    if counted.own.all():
        return accesses, patterns
    begin = 2 * (counted.first + [len(part.own) for part in counted.parts])
    shared = [(part.shared, first) for part, first in zip(counted.parts, begin, strict=True) if part.shared is not None]
    stream = np.concatenate((accesses.stream, *(part.stream + first for part, first in shared)))
    size = np.concatenate((accesses.size, *(part.size for part, _ in shared)))
    order = np.argsort(stream, kind="stable")
    of_reduced = [part.patterns for part in counted.parts if part.patterns is not None]
    rest = np.flatnonzero(~np.repeat(counted.own, 2))
    columns = {}
    for name in Patterns.__slots__:
        of_own = getattr(patterns, name)
        columns[name] = np.zeros((2 * len(files), *of_own.shape[1:]), dtype=of_own.dtype)
        columns[name][streams] = of_own
        if of_reduced:
            columns[name][rest] = np.concatenate([getattr(each, name) for each in of_reduced])
    return SizedAccesses(stream=stream[order], size=size[order]), Patterns(**columns)


def _too_many(
    files: CountedFiles,
    counted: CountedBatch,
    left: Transfers,
    planned: np.ndarray,
    paths: Mapping[int, bytes],
) -> str:
    """An error: the process with the most untraced reads and writes, and the remedy."""
    own, worst = np.flatnonzero(counted.own), int(planned.argmax())
    mine = counted.process[own] == worst
    count, moved = (np.where(mine, values.reshape(-1, 2).sum(axis=1), 0) for values in (left.count, left.moved))
    where, part = "", counted.parts[worst]
    if count.sum() >= part.dealt:
        most = int(count.argmax())
        path = paths.get(int(files.record_id[own[most]]), b"").decode("utf-8", "backslashreplace")
        where = f", {count[most]:,} of them ({format_bytes(int(moved[most]))}) of {path or 'a file without a name'}"
    return (
        f"the counters of one process have {int(planned[worst]):,} reads and writes that no trace holds{where}: more "
        f"than the {RECONSTRUCT_LIMIT:,} that are rebuilt at most. --exclude GLOB leaves such a file out, and "
        "--no-reconstruct all that was not traced"
    )


def _of_own(operations: FileOperations, own: np.ndarray) -> FileOperations:
    """The operations on the files of a bool mask, with files renumbered from 0."""
    return operations if own.all() else operations.of_files(own)


def own_patterns(left: Transfers, opens: np.ndarray) -> Patterns:
    """The order that the counters of a rank's own records determine.

    If the order is not counted, the file is read or written from its start, repeatedly if more was moved than it holds.
    If less was moved, it ended at the highest offset: it was appended.
    """
    ordered = left.consec >= 0
    passes = np.clip(-(-left.moved // np.maximum(left.end, 1)), 1, np.maximum(left.count, 1))
    opens = np.where(ordered, np.repeat(opens, 2), passes)
    backward = np.where(ordered, np.maximum(left.count - left.seq, 0), passes)
    apart = np.where(ordered, np.maximum(left.count - left.consec, backward), passes)
    gaps = np.maximum(apart - backward, 0).reshape(-1, 2)
    share = gaps / np.maximum(gaps.sum(axis=1, keepdims=True), 1)
    of_reads = np.rint(left.stride_count * share[:, :1]).astype(np.int64)
    gap_count = np.stack((of_reads, np.where(share[:, 1:] > 0, left.stride_count - of_reads, 0)), axis=1)
    return Patterns(
        backward=backward,
        apart=apart,
        low=np.where(ordered, 0, np.maximum(left.end - left.moved, 0)),
        high=left.end,
        opens=opens,
        gap=np.repeat(left.stride, 2, axis=0),
        gap_count=gap_count.reshape(-1, left.stride.shape[1]),
    )


def _times(
    files: CountedFiles,
    placed: PlacedAccesses,
    operations: FileOperations,
    unknown_ns: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each access. Those of the last run follow the last open, if its time is known."""
    begin, end, spent = _windows(files, operations, unknown_ns)
    runs = np.cumsum(placed.begins)
    last_run = np.zeros(2 * len(files), dtype=np.int64)
    first_run = np.full(2 * len(files), len(placed.stream) + 1)
    np.maximum.at(last_run, placed.stream, runs)
    np.minimum.at(first_run, placed.stream, runs)
    opened = np.repeat(files.open_end, 2)
    lasting = files.meta_ns // np.maximum(2 * files.opens + files.stats + files.seeks, 1)
    before = np.maximum(opened - np.repeat(lasting, 2) - 1, begin)
    splits = (np.repeat(files.own & (files.opens > 1), 2)) & (last_run > first_run) & (opened > begin) & (opened < end)
    late = splits[placed.stream] & (runs == last_run[placed.stream])
    segment = 2 * placed.stream + late
    counts = np.bincount(segment, minlength=4 * len(files)).reshape(-1, 2)
    part = counts[:, 1] / np.maximum(counts.sum(axis=1), 1)
    # Each segment gets its share of the time, plus time for which the other has no room.
    wanted = np.maximum((spent * part).astype(np.int64), spent - np.maximum(before - begin, 0))
    spent_late = np.where(splits, np.clip(np.minimum(wanted, end - opened), 0, spent), 0)
    # A single access would fill its whole segment.
    first_end = np.where(counts[:, 0] == 1, np.minimum(before, begin + spent - spent_late), before)
    last_begin = np.where(counts[:, 1] == 1, np.maximum(opened, end - spent_late), opened)
    begins = np.stack((begin, np.where(splits, last_begin, begin)), axis=1).ravel()
    ends = np.stack((np.where(splits, first_end, end), end), axis=1).ravel()
    of_segment = np.stack((spent - spent_late, spent_late), axis=1).ravel()
    longest = np.stack((files.longest_read_ns, files.longest_write_ns), axis=1).ravel() * np.repeat(files.own, 2)
    longest_of_segment = np.stack((longest, np.zeros_like(longest)), axis=1).ravel()
    return access_times(segment, begins, ends, of_segment, longest_of_segment)


def access_times(
    segment: np.ndarray, begin: np.ndarray, end: np.ndarray, spent_ns: np.ndarray, longest_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end ns of accesses (n,), sorted by `segment`; the other arrays are by segment.

    They are spread evenly, and none overlaps another of its segment. The first starts at `begin`, the last ends at
    `end`, together they last `spent_ns`, or the window if it is shorter. The first lasts `longest_ns` (0: unknown),
    because caches are cold then, if that leaves the others a nanosecond each.
    """
    count = np.bincount(segment, minlength=len(begin))
    first = np.cumsum(count) - count
    number = np.arange(len(segment)) - first[segment]
    window = np.maximum(end - begin, 0)
    spent = np.where(count > 1, np.minimum(spent_ns, window), window)
    rest = np.maximum(count - 1, 0)
    first_longest = (count > 1) & (longest_ns * count > spent) & (longest_ns + rest <= spent)
    shared, among = np.where(first_longest, spent - longest_ns, spent), np.where(first_longest, rest, count)
    each = shared // np.maximum(among, 1)
    lasts = each[segment] + (number - first_longest[segment] < (shared - each * among)[segment])
    lasts = np.where((number == 0) & first_longest[segment], longest_ns[segment], lasts)
    done = np.cumsum(lasts) - lasts
    done -= done[first[segment]]
    free = (window - spent).astype(np.float64)
    idle = free[segment] * (number / np.maximum(count - 1, 1)[segment])
    start = begin[segment] + done + idle.astype(np.int64)
    return start, start + lasts


def _windows(
    files: CountedFiles, operations: FileOperations, unknown_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Begin, end and time spent of each stream; after a trace that stopped, it begins where that stopped."""

    def by_stream(read: np.ndarray, write: np.ndarray) -> np.ndarray:
        return np.stack((read, write), axis=1).ravel()

    begin = by_stream(files.read_start, files.write_start)
    end = by_stream(files.read_end, files.write_end)
    opened, closed = np.repeat(files.open_start, 2), np.repeat(files.close_end, 2)
    begin = np.where(begin != NOT_SEEN, begin, np.where(opened != NOT_SEEN, opened, np.repeat(unknown_ns, 2)))
    end = np.where(end != NOT_SEEN, end, np.where(closed != NOT_SEEN, closed, begin))
    spent = by_stream(files.read_ns, files.write_ns)
    if len(operations):
        stream = 2 * operations.file + operations.is_write
        np.maximum.at(begin, stream, operations.end)
        np.subtract.at(spent, stream, operations.end - operations.start)
    return begin, np.maximum(begin, end), np.maximum(spent, 0)
