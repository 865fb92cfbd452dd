"""Rebuilds the operations that no trace holds (reads, writes, metadata) from the counters of processes. Pure.

Numbers and bytes are the counters', times lie in the windows of the counters, and the rest is inferred. All rows are
marked as reconstructed. All processes of a batch are processed at once, with a file or a row each in the arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dxt_replay.profiler_merge.darshan.lanes import (
    first_not_below,
    lanes_where_clear,
    latest_before,
)
from dxt_replay.profiler_merge.untraced.data_rows import (
    CountedBatch,
    CountedData,
    DataRows,
    data_rows,
    joined_rows,
    recounted,
    with_rebuilt,
)
from dxt_replay.profiler_merge.untraced.file_operations import MadeRows
from dxt_replay.profiler_merge.untraced.metadata_rows import CLOSE, SYNC, metadata_rows
from dxt_replay.profiler_merge.untraced.rank_counters import COUNTED_TIMES, NOT_SEEN, CountedFiles
from dxt_replay.profiler_merge.untraced.renamed_files import LogNames, Renames, follow_renames, may_rename, renames_of
from dxt_replay.profiler_merge.untraced.traced_operations import (
    POSIX,
    FilePlaces,
    ModuleOperations,
    Traced,
)
from dxt_replay.profiler_merge.untraced.transfers import Transfers
from dxt_replay.traces.few_together import few_together
from dxt_replay.traces.schema import APIS, OPS, READ, WRITE

MOST_ROWS = 1 << 24
"""Most opens, stats and syncs that are made for one process, unless it has more reads and writes.

It protects memory: the files with the most of them lose theirs."""

CHUNK_ROWS = 1 << 18
"""Accesses of processes that are rebuilt together, unless one process alone has more."""

_RENAME = OPS.index("rename")
_AFTER_ALL = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RebuiltData:
    """Reads and writes made for some processes at one module.

    `counted`: the input; `files`: the files of its counters. `again`: the counters of traced and made operations
    together. `file`, `length` (n,): of the made ones.
    """

    module: str
    counted: CountedBatch
    files: CountedFiles
    again: Transfers
    file: np.ndarray
    length: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReconstructedRows:
    """Rows (n,) by process and start, columns as in `traces.schema.OPS_SCHEMA` but for `process` (place in the batch),
    `record_id` and `target_id` (uint64).

    `target_id`: record id of the new name for a rename, else 0. `tie` orders rows that start together.
    `names`: record id -> path of new names that the log does not know. `left_out`: record id -> opens, stats and syncs
    that are too many to be made. `rebuilt`: the reads and writes among the rows, by module.
    """

    process: np.ndarray
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
    left_out: Mapping[int, int]
    rebuilt: tuple[RebuiltData, ...]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.op)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CountedModule:
    """The counters of one module for a batch of processes.

    `data`: what is known of the reads and writes of the processes whose trace does not hold all of them, by process,
    from the number of traced operations of each stream (int64 (2 files,)); None to make none.
    """

    module: str
    files: CountedFiles
    data: Callable[[np.ndarray], Mapping[int, CountedData]] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _MadeOfModule:
    """The rows made for one module, and its traced reads and writes."""

    counted: CountedModule
    operations: ModuleOperations
    data: DataRows
    metadata: MadeRows
    rebuilt: tuple[RebuiltData, ...]


def reconstruct(
    traced: Traced, modules: Sequence[CountedModule], names: LogNames, processes: int = 1
) -> ReconstructedRows:
    """The rows of a batch of `processes`. All times on the clock of `traced`.

    `modules`: POSIX and STDIO.
    Raises: LogError when a process has more untraced reads and writes at a module than are rebuilt.
    """
    modules, left_out = _bounded(modules, processes)
    posix, stdio = (next(each.files for each in modules if each.module == name) for name in ("POSIX", "STDIO"))
    begin_ns = _first_times(traced, [each.files for each in modules], processes)
    renames = _renames(posix, stdio, names, begin_ns)
    made: list[_MadeOfModule] = []
    for each in modules:
        undated = _undated(posix, stdio, renames, begin_ns) if each.module == "POSIX" else begin_ns[each.files.process]
        made.append(_made(each, traced, undated, names.by_record))
    columns = _columns(made, renames)
    operations = next(each for each in made if each.counted.module == "POSIX")
    wanted = _wanted_lanes(columns, posix, operations.operations)
    for process, found in renames.items():
        rows = slice(*np.searchsorted(columns["process"], [process, process + 1]))
        follow_renames(columns["record_id"][rows], wanted[rows], found, names)
    # If one thread issued all traced operations, its untraced ones stay in order with them.
    single = traced.lanes_used(processes) == 1
    wanted[(wanted < 0) & single[columns["process"]]] = 0
    columns, wanted = _behind_what_came_before(columns, wanted, traced)
    return ReconstructedRows(
        **columns,
        lane=_lanes(columns, wanted, traced, processes),
        names={record: path for each in renames.values() for record, path in each.names.items()},
        left_out=left_out,
        rebuilt=tuple(each for of_module in made for each in of_module.rebuilt),
    )


def _made(counted: CountedModule, traced: Traced, unknown_ns: np.ndarray, paths: Mapping[int, bytes]) -> _MadeOfModule:
    """The rows of one module. `unknown_ns` (files,): time for rows of unknown time."""
    files = counted.files
    of_module = traced.of_module(files, counted.module)
    known = {} if counted.data is None else counted.data(of_module.streams)
    operations = of_module.whole() if known else of_module.needed()
    parts = []
    for some in few_together(known, lambda process: _size(known[process]), CHUNK_ROWS):
        mine = np.isin(files.process, some)
        batch = CountedBatch.of([known[process] for process in some])
        made = data_rows(files.select(mine), batch, operations.of_files(mine), unknown_ns[mine], paths)
        parts.append((mine, batch, made))
    data = joined_rows([(np.flatnonzero(mine), made) for mine, _, made in parts])
    together = with_rebuilt(operations, data)
    metadata = metadata_rows(files, together, unknown_ns)
    rebuilt = [
        RebuiltData(
            module=counted.module,
            counted=batch,
            files=files.select(mine),
            again=recounted(batch.wanted, together.of_files(mine), metadata.of_files(mine)),
            file=made.rows.file,
            length=made.rows.length,
        )
        for mine, batch, made in parts
        if len(made.rows)
    ]
    return _MadeOfModule(counted=counted, operations=of_module, data=data, metadata=metadata, rebuilt=tuple(rebuilt))


def _size(process: CountedData) -> int:
    """Accesses and files, about as many as the rows made from them."""
    return int(process.own.count.sum()) + process.dealt + process.files


def _behind_what_came_before(
    columns: dict[str, np.ndarray], wanted: np.ndarray, traced: Traced
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The rows and their lanes, with opens and the like moved behind the previous row on their lane.

    Their durations are means, so some reach into the previous operation, and would look like another thread's. A row
    that would lose more than half of its duration may be another thread's, and stays.
    """
    start, end, process = columns["start_ns"], columns["end_ns"], columns["process"]
    rows = np.flatnonzero(wanted >= 0)
    if not len(rows):
        return columns, wanted
    of_lane = process[rows] * (1 + int(wanted.max())) + wanted[rows]
    rows = rows[np.argsort(of_lane, kind="stable")]
    free_ns = np.maximum(
        traced.latest_on_lanes(process[rows], wanted[rows], end[rows]), latest_before(end[rows], np.sort(of_lane))
    )
    reach = np.maximum(free_ns, start[rows]) - start[rows]
    moved = (reach > 0) & (2 * reach <= end[rows] - start[rows]) & ~np.isin(columns["op"][rows], (READ, WRITE))
    columns["start_ns"] = start.copy()
    columns["start_ns"][rows[moved]] = free_ns[moved]
    order = _in_order(columns)
    return {name: values[order] for name, values in columns.items()}, wanted[order]


def _lanes(columns: Mapping[str, np.ndarray], wanted: np.ndarray, traced: Traced, processes: int) -> np.ndarray:
    """int32 lane of each row."""
    start, end, process = columns["start_ns"], columns["end_ns"], columns["process"]
    rows = np.flatnonzero(wanted >= 0)
    latest = traced.latest_on_lanes(process[rows], wanted[rows], end[rows])
    return lanes_where_clear(wanted, start, end, latest, traced.lanes_used(processes), process)


def _columns(made: Sequence[_MadeOfModule], renames: Mapping[int, Renames]) -> dict[str, np.ndarray]:
    """The columns of the rows of all modules and of renames, by process and start."""
    parts = [(each.counted.files, rows) for each in made for rows in (each.data.rows, each.metadata)]
    apis = [
        np.full(len(rows), APIS.index(each.counted.module)) for each in made for rows in (each.data.rows, each.metadata)
    ]
    count = sum(len(rows) for _, rows in parts)
    renamed = sum(len(each) for each in renames.values())
    no_ids, no_times = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    source, target = (
        np.concatenate([no_ids, *(getattr(each, name) for each in renames.values())]) for name in ("source", "target")
    )
    at_ns = np.concatenate([no_times, *(each.at_ns for each in renames.values())])
    of_rename = np.repeat(
        np.fromiter(renames, np.int64, len(renames)), np.array([len(each) for each in renames.values()], dtype=np.int64)
    )
    columns = {
        "process": np.concatenate([files.process[rows.file] for files, rows in parts] + [of_rename]),
        "op": np.concatenate([rows.op for _, rows in parts] + [np.full(renamed, _RENAME, dtype=np.int8)]),
        "api": np.concatenate([*apis, np.full(renamed, POSIX)]),
        "record_id": np.concatenate([files.record_id[rows.file] for files, rows in parts] + [source]),
        "target_id": np.concatenate([np.zeros(count, dtype=np.uint64), target]),
        "start_ns": np.concatenate([rows.start for _, rows in parts] + [at_ns]),
        "end_ns": np.concatenate([rows.end for _, rows in parts] + [at_ns]),
    }
    for name, value in (("offset", -1), ("length", 0), ("tie", _AFTER_ALL)):
        of_renames = np.full(renamed, value, dtype=np.int64)
        columns[name] = np.concatenate([getattr(rows, name) for _, rows in parts] + [of_renames])
    order = _in_order(columns)
    columns = {name: values[order] for name, values in columns.items()}
    columns["api"] = columns["api"].astype(np.int8)
    return columns


def _in_order(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    # Of rows that start together, those of zero length come first: they must not follow an operation that ends later.
    lasts = columns["end_ns"] > columns["start_ns"]
    return np.lexsort((columns["tie"], -columns["end_ns"], lasts, columns["start_ns"], columns["process"]))


def _bounded(modules: Sequence[CountedModule], processes: int) -> tuple[list[CountedModule], Mapping[int, int]]:
    """The rows with only the first and last open of the files with the most opens, stats and syncs, for processes with
    more than MOST_ROWS of these.

    Also the number that each such file loses, by record id. No read or write is lost."""
    rows = np.concatenate([_metadata(each) for each in modules])
    process = np.concatenate([each.files.process for each in modules])
    total = np.bincount(process, weights=rows, minlength=processes)
    kept = np.ones(len(rows), dtype=bool)
    for beyond in np.flatnonzero(total > MOST_ROWS).tolist():
        mine = np.flatnonzero(process == beyond)
        order = mine[np.argsort(rows[mine], kind="stable")]
        kept[order] = np.cumsum(rows[order].astype(np.float64)) <= MOST_ROWS
    if kept.all():
        return list(modules), {}
    bounded, lost = [], Counter[int]()
    for each, mask in zip(modules, np.split(kept, np.cumsum([len(each.files) for each in modules])[:-1]), strict=True):
        files = each.files
        few = np.minimum(files.opens, 2)
        made = _metadata(each)
        left = np.where(mask, made, 2 * few)
        gone = made - left
        for record, count in zip(files.record_id[gone > 0].tolist(), gone[gone > 0].tolist(), strict=True):
            lost[record] += count
        counts = {name: np.where(mask, getattr(files, name), 0) for name in ("stats", "syncs")}
        counts["opens"] = np.where(mask, files.opens, few)
        share = np.where(gone > 0, left / np.maximum(made, 1), 1.0)
        counts |= {name: (getattr(files, name) * share).astype(np.int64) for name in ("seeks", "meta_ns")}
        bounded.append(replace(each, files=replace(files, **counts)))
    return bounded, lost


def _metadata(counted: CountedModule) -> np.ndarray:
    """int64 (files,): number of rows made for each file besides its data."""
    files = counted.files
    return 2 * files.opens + files.stats + files.syncs


def _first_times(traced: Traced, counted: Sequence[CountedFiles], processes: int) -> np.ndarray:
    """int64 (processes,): the first known instant, 0 if there is none."""
    never = np.iinfo(np.int64).max
    first = traced.first_times(processes)
    for files in counted:
        for name in COUNTED_TIMES:
            times = getattr(files, name)
            np.minimum.at(first, files.process, np.where(times == NOT_SEEN, never, times))
    return np.where(first == never, 0, first)


def _renames(posix: CountedFiles, stdio: CountedFiles, names: LogNames, begin_ns: np.ndarray) -> dict[int, Renames]:
    """The renames of the processes that made any, by process."""
    found = {}
    for process in np.union1d(may_rename(posix, names), may_rename(stdio, names)).tolist():
        own_posix, own_stdio = (
            files.select(slice(*np.searchsorted(files.process, [process, process + 1]))) for files in (posix, stdio)
        )
        renames = renames_of(own_posix, own_stdio, names, int(begin_ns[process]))
        if len(renames):
            found[process] = renames
    return found


def _undated(
    posix: CountedFiles, stdio: CountedFiles, renames: Mapping[int, Renames], begin_ns: np.ndarray
) -> np.ndarray:
    """Time of files without any recorded time: after they were written or got their name, if they were."""
    undated = begin_ns[posix.process]
    for process, found in renames.items():
        mine = slice(*np.searchsorted(posix.process, [process, process + 1]))
        known = dict(zip(found.target.tolist(), found.at_ns.tolist(), strict=True))
        records = posix.record_id[mine].tolist()
        undated[mine] = [known.get(record, int(begin_ns[process])) for record in records]
    closed = stdio.select(stdio.close_end != NOT_SEEN)
    # If several have the record, the last one counts.
    place, has = FilePlaces(closed.select(slice(None, None, -1))).find(posix.process, posix.record_id)
    undated[has] = closed.close_end[len(closed) - 1 - place[has]]
    return undated


def _wanted_lanes(rows: Mapping[str, np.ndarray], files: CountedFiles, operations: ModuleOperations) -> np.ndarray:
    """Lane of the next traced operation of the same file, or of the previous one for a close or a sync; else -1."""
    wanted = np.full(len(rows["op"]), -1, dtype=np.int32)
    if not len(operations.start):
        return wanted
    file, known = FilePlaces(files).find(rows["process"], rows["record_id"])
    first, last = operations.begin, operations.end
    used = known & (last[file] > first[file])
    begin, end = first[file[used]], last[file[used]]
    following = first_not_below(operations.start, begin, end, rows["start_ns"][used])
    after = np.isin(rows["op"][used], (CLOSE, SYNC))
    wanted[used] = operations.lane[np.clip(following - after, begin, end - 1)]
    return wanted
