"""The rows that no trace holds: reads, writes and metadata operations of one process, from its counters. Pure.

Numbers and bytes are the counters', times lie in the windows that the counters give, and the rest is inferred. All rows
are marked as reconstructed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profiler_merge.darshan.lanes import lanes_beside, lanes_from_overlap
from profiler_merge.darshan.record_id import record_id
from profiler_merge.untraced.data_rows import CountedData, DataRows, data_rows, no_data, recounted, with_rebuilt
from profiler_merge.untraced.metadata_rows import (
    CLOSE,
    SYNC,
    FileOperations,
    MadeRows,
    metadata_rows,
    no_operations,
    no_rows,
)
from profiler_merge.untraced.rank_counters import COUNTED_TIMES, NOT_SEEN, CountedFiles
from profiler_merge.untraced.renames import Rename, WrittenFile, checkpoint_renames, final_name, merged_shard
from profiler_merge.untraced.transfers import Transfers
from traces.schema import APIS, OPS

MOST_ROWS = 1 << 24
"""Most rows made for one process: files with the most rows are left out before memory runs out."""

_POSIX, _MPIIO, _COLLECTIVE = (APIS.index(name) for name in ("POSIX", "MPIIO", "MPIIO_COLL"))
APIS_OF_MODULE = {"POSIX": (_POSIX,), "STDIO": (APIS.index("STDIO"),), "MPI-IO": (_MPIIO, _COLLECTIVE)}
"""Codes of the interfaces whose operations a module counts."""

_RENAME = OPS.index("rename")
_AFTER_ALL = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedRows:
    """Traced operations of one process in start order; (n,), `record_id` uint64, `is_write` bool, else integers."""

    record_id: np.ndarray
    api: np.ndarray
    is_write: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    lane: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReconstructedRows:
    """Rows (n,) in start order, columns as in `traces.schema.OPS_SCHEMA` but for `record_id` and `target_id` (uint64).

    `target_id`: record id of the new name for a rename, else 0. `tie` orders rows that start together.
    `names`: record id -> path of new names that the log does not know. `left_out`: rows beyond MOST_ROWS. `again`: by
    module, the counters of traced and made reads and writes together, where any was made.
    """

    op: np.ndarray
    api: np.ndarray
    record_id: np.ndarray
    target_id: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    tie: np.ndarray
    lane: np.ndarray
    names: Mapping[int, bytes]
    left_out: int
    again: Mapping[str, Transfers]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.op)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountedModule:
    """What the counters of one module hold of a process: its files, and their reads and writes (None to make none)."""

    module: str
    files: CountedFiles
    data: CountedData | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _MadeOfModule:
    """The rows made for one module; `operations`: its traced reads and writes, `rows` which of the traced rows."""

    counted: CountedModule
    operations: FileOperations
    rows: np.ndarray
    data: DataRows
    metadata: MadeRows

    @property
    def again(self) -> Transfers | None:
        """The counters of traced and made reads and writes; None where none was made."""
        if not len(self.data.rows) or self.counted.data is None:
            return None
        together = with_rebuilt(self.operations, self.data)
        return recounted(self.counted.data.wanted, together, self.metadata)


def reconstruct(
    traced: TracedRows, modules: Sequence[CountedModule], names: Mapping[int, bytes], limit: int = MOST_ROWS
) -> ReconstructedRows:
    """The rows of one process. All times on the clock of `traced`; `names`: paths of the log's record ids.

    `modules`: POSIX, STDIO and, for reads and writes alone, MPI-IO.
    Raises: LogError when more than `limit` reads and writes of a module are in no trace.
    """
    modules, left_out = _bounded(modules)
    posix, stdio = (next(each.files for each in modules if each.module == name) for name in ("POSIX", "STDIO"))
    begin_ns = _first_time(traced, *(each.files for each in modules))
    renames = _renames(posix, stdio, names, begin_ns)
    undated = {"POSIX": _undated(posix, stdio, renames, begin_ns)}
    made = [_made(each, traced, undated.get(each.module, begin_ns), limit) for each in modules]
    columns = _columns(made, renames)
    operations = next(each for each in made if each.counted.module == "POSIX")
    wanted = _wanted_lanes(columns, posix, operations.operations, traced.lane[operations.rows])
    _follow_renames(columns["record_id"], wanted, renames, names)
    if len(traced.lane) and not traced.lane.any():
        # One thread did all that was traced: what it did untraced stays in order with that.
        wanted[wanted < 0] = 0
    again = {each.counted.module: found for each in made if (found := each.again) is not None}
    lane = _lanes(columns, wanted, traced)
    return ReconstructedRows(**columns, lane=lane, names=renames.names, left_out=left_out, again=again)


def _made(counted: CountedModule, traced: TracedRows, unknown_ns: np.ndarray | int, limit: int) -> _MadeOfModule:
    """The rows of one module. `unknown_ns` (files,): where what has no time at all is placed."""
    files = counted.files
    operations, rows = operations_of(traced, files, counted.module)
    unknown_ns = np.broadcast_to(np.int64(unknown_ns), len(files))
    data = no_data() if counted.data is None else data_rows(files, counted.data, operations, unknown_ns, limit)
    # MPI-IO opens and closes through POSIX.
    metadata = (
        no_rows()
        if counted.module == "MPI-IO"
        else metadata_rows(files, with_rebuilt(operations, data), unknown_ns)
    )  # fmt: skip
    return _MadeOfModule(counted=counted, operations=operations, rows=rows, data=data, metadata=metadata)


def _lanes(columns: Mapping[str, np.ndarray], wanted: np.ndarray, traced: TracedRows) -> np.ndarray:
    """int32 lane of each row. MPI-IO has lanes of its own: its calls last as long as the POSIX calls in them."""
    start, end = columns["start_ns"], columns["end_ns"]
    above = np.isin(columns["api"], (_MPIIO, _COLLECTIVE))
    lane = np.empty(len(start), dtype=np.int32)
    lane[~above] = lanes_beside(
        wanted[~above], start[~above], end[~above], traced.lane, traced.start_ns, traced.end_ns
    )  # fmt: skip
    first = max(lane[~above].max(initial=-1), traced.lane.max(initial=-1)) + 1
    lane[above] = lanes_from_overlap(start[above], end[above]) + np.int32(first)
    return lane


def _columns(made: Sequence[_MadeOfModule], renames: _Renames) -> dict[str, np.ndarray]:
    """The columns of the rows of all modules and of renames, in start order."""
    parts = [(each.counted.files, rows) for each in made for rows in (each.data.rows, each.metadata)]
    apis = [values for each in made for values in _apis(each)]
    count = sum(len(rows) for _, rows in parts)
    columns = {
        "op": np.concatenate([rows.op for _, rows in parts] + [np.full(len(renames), _RENAME, dtype=np.int8)]),
        "api": np.concatenate([*apis, np.full(len(renames), _POSIX)]),
        "record_id": np.concatenate([files.record_id[rows.file] for files, rows in parts] + [renames.source]),
        "target_id": np.concatenate([np.zeros(count, dtype=np.uint64), renames.target]),
        "start_ns": np.concatenate([rows.start for _, rows in parts] + [renames.at_ns]),
        "end_ns": np.concatenate([rows.end for _, rows in parts] + [renames.at_ns]),
    }
    for name, of_rename in (("offset", 0), ("length", 0), ("tie", _AFTER_ALL)):
        of_renames = np.full(len(renames), of_rename, dtype=np.int64)
        columns[name] = np.concatenate([getattr(rows, name) for _, rows in parts] + [of_renames])
    # Of what starts together, what takes no time comes first: it must not follow an operation that ends later.
    lasts = columns["end_ns"] > columns["start_ns"]
    order = np.lexsort((columns["tie"], -columns["end_ns"], lasts, columns["start_ns"]))
    columns = {name: values[order] for name, values in columns.items()}
    columns["api"] = columns["api"].astype(np.int8)
    return columns


def _apis(made: _MadeOfModule) -> tuple[np.ndarray, np.ndarray]:
    """Code of the interface of each row of data, and of each other row."""
    own, *collective = APIS_OF_MODULE[made.counted.module]
    of_data = np.where(made.data.collective, collective[0] if collective else own, own)
    return of_data, np.full(len(made.metadata), own)


def _bounded(modules: Sequence[CountedModule]) -> tuple[list[CountedModule], int]:
    """Without the files that have the most opens and the like, where there are more than MOST_ROWS of these in all."""
    rows = [2 * each.files.opens + each.files.stats + each.files.seeks + each.files.syncs for each in modules]
    of_all = np.concatenate(rows)
    if of_all.sum() <= MOST_ROWS:
        return list(modules), 0
    order = np.argsort(of_all, kind="stable")
    kept = np.zeros(len(of_all), dtype=bool)
    kept[order[np.cumsum(of_all[order].astype(np.float64)) <= MOST_ROWS]] = True
    of_module = np.split(kept, np.cumsum([len(each) for each in rows])[:-1])
    bounded = [
        each if mask.all() else replace(each, files=each.files.select(mask), data=None)
        for each, mask in zip(modules, of_module, strict=True)
    ]
    return bounded, int(of_all[~kept].sum())


def _first_time(traced: TracedRows, *counted: CountedFiles) -> int:
    """The first instant that anything is known of, 0 when nothing is."""
    times = [getattr(files, name) for files in counted for name in COUNTED_TIMES] + [traced.start_ns]
    seen = [int(values[values != NOT_SEEN].min()) for values in times if (values != NOT_SEEN).any()]
    return min(seen, default=0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Renames:
    """Record ids uint64 (n,), instants int64 (n,), and the names that the log does not have."""

    source: np.ndarray
    target: np.ndarray
    at_ns: np.ndarray
    names: Mapping[int, bytes]

    def __len__(self) -> int:
        return len(self.at_ns)


def _renames(posix: CountedFiles, stdio: CountedFiles, names: Mapping[int, bytes], begin_ns: int) -> _Renames:
    """The renames that the counters report, and those of temporary files of checkpoints."""
    closed, opened, written = _closed_opened_written((posix, stdio), names)
    found = checkpoint_renames(written, closed, opened)
    pairs = {(rename.source, rename.target) for rename in found}
    counted = np.flatnonzero(posix.renamed_from)
    for target, source in zip(posix.record_id[counted].tolist(), posix.renamed_from[counted].tolist(), strict=True):
        old, new = names.get(source), names.get(target)
        if old is None or new is None or (old, new) in pairs:
            continue
        at_ns = closed.get(old, opened.get(new, begin_ns))
        found.append(Rename(source=old, target=new, at_ns=at_ns))
    # The ids of a log whose names are obfuscated are those of the true names.
    known = {path: record for record, path in names.items()} if found else {}
    ids = {
        path: known[path] if path in known else record_id(path)
        for rename in found
        for path in (rename.source, rename.target)
    }
    return _Renames(
        source=np.array([ids[rename.source] for rename in found], dtype=np.uint64),
        target=np.array([ids[rename.target] for rename in found], dtype=np.uint64),
        at_ns=np.array([rename.at_ns for rename in found], dtype=np.int64),
        names={ids[rename.target]: rename.target for rename in found if ids[rename.target] not in names},
    )


def _closed_opened_written(
    layers: tuple[CountedFiles, ...], names: Mapping[int, bytes]
) -> tuple[dict[bytes, int], dict[bytes, int], list[WrittenFile]]:
    """Last close and first open by name, and the temporary files that were written."""
    closed: dict[bytes, int] = {}
    opened: dict[bytes, int] = {}
    written = []
    for files in layers:
        columns = (files.record_id, files.close_end, files.open_start, files.writes)
        for record, close, opening, writes in zip(*(column.tolist() for column in columns), strict=True):
            path = names.get(record)
            if path is None:
                continue
            if close != NOT_SEEN:
                closed[path] = max(close, closed.get(path, close))
            if opening != NOT_SEEN:
                opened[path] = min(opening, opened.get(path, opening))
            if writes and close != NOT_SEEN and final_name(path) is not None:
                written.append(WrittenFile(path=path, closed_ns=close))
    return closed, opened, written


def _undated(posix: CountedFiles, stdio: CountedFiles, renames: _Renames, begin_ns: int) -> np.ndarray:
    """When files without any recorded time were looked at: after they were written or got their name, if they were."""
    known: dict[int, int] = dict(zip(renames.target.tolist(), renames.at_ns.tolist(), strict=True))
    closed = stdio.close_end != NOT_SEEN
    known |= dict(zip(stdio.record_id[closed].tolist(), stdio.close_end[closed].tolist(), strict=True))
    return np.array([known.get(record, begin_ns) for record in posix.record_id.tolist()], dtype=np.int64)


def operations_of(traced: TracedRows, files: CountedFiles, module: str = "POSIX") -> tuple[FileOperations, np.ndarray]:
    """The traced operations of counted files of a module, by file and start, and which rows of `traced` they are."""
    if not len(files):
        return no_operations(), np.empty(0, dtype=np.int64)
    by_id = np.argsort(files.record_id)
    known = files.record_id[by_id]
    place = np.minimum(np.searchsorted(known, traced.record_id), len(known) - 1)
    own = np.isin(traced.api, APIS_OF_MODULE[module])
    mine = own & (known[place] == traced.record_id)
    rows = np.flatnonzero(mine)
    file = by_id[place[rows]]
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


def _wanted_lanes(
    rows: Mapping[str, np.ndarray], files: CountedFiles, operations: FileOperations, lane: np.ndarray
) -> np.ndarray:
    """Lane of the traced operation of the same file that comes next, or came last for a close or a sync; else -1."""
    wanted = np.full(len(rows["op"]), -1, dtype=np.int32)
    if not len(operations):
        return wanted
    by_id = np.argsort(files.record_id)
    place = np.minimum(np.searchsorted(files.record_id[by_id], rows["record_id"]), len(by_id) - 1)
    file = by_id[place]
    first = np.searchsorted(operations.file, np.arange(len(files)))
    last = np.searchsorted(operations.file, np.arange(len(files)), side="right")
    used = (files.record_id[file] == rows["record_id"]) & (last[file] > first[file])
    begin, end = first[file[used]], last[file[used]]
    following = _bisect(operations.start, begin, end, rows["start_ns"][used])
    after = np.isin(rows["op"][used], (CLOSE, SYNC))
    wanted[used] = lane[np.clip(following - after, begin, end - 1)]
    return wanted


def _follow_renames(record: np.ndarray, wanted: np.ndarray, renames: _Renames, names: Mapping[int, bytes]) -> None:
    """Gives rows (n,) without a lane the one that works on what their file became, or on the rest of its checkpoint.

    What was written under another name and is read then must come first, whatever the storage does in a replay.
    """
    with_lane = np.flatnonzero(wanted >= 0)
    lanes = dict(zip(record[with_lane].tolist(), wanted[with_lane].tolist(), strict=True))
    if len(renames):
        _give_lanes_of_renamed(lanes, renames, names)
    followed = np.fromiter((lanes.get(each, -1) for each in record.tolist()), np.int32, len(record))
    np.copyto(wanted, followed, where=wanted < 0)


def _give_lanes_of_renamed(lanes: dict[int, int], renames: _Renames, names: Mapping[int, bytes]) -> None:
    """Give the old names of files the lane of the new ones in `lanes`, by record id."""
    paths = {**names, **renames.names}
    ids = {path: known for known, path in paths.items()}
    for source, target in reversed(list(zip(renames.source.tolist(), renames.target.tolist(), strict=True))):
        shard = merged_shard(paths[source])
        chain = [source, target]
        if shard is not None:
            chain += [ids[path] for path in (shard.part_index, shard.index) if path in ids]
        lane = next((lanes[each] for each in chain[1:] if each in lanes), -1)
        if lane >= 0:
            for each in chain:
                lanes.setdefault(each, lane)


def _bisect(ascending: np.ndarray, begin: np.ndarray, end: np.ndarray, value: np.ndarray) -> np.ndarray:
    """For each row: the first place in ascending[begin:end] that is not below its value."""
    low, high = begin.copy(), end.copy()
    while (open_ := low < high).any():
        middle = (low + high) // 2
        below = open_ & (ascending[np.minimum(middle, len(ascending) - 1)] < value)
        low = np.where(below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low
