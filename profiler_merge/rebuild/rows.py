"""Rebuilds the operations that no trace holds (reads, writes, metadata, renames) from the counters of processes. Pure.

Numbers and bytes are the counters', times lie in the windows of the counters, and the rest is inferred (`data`,
`metadata`). All rows are marked as reconstructed. All processes of a batch are rebuilt at once.

Lanes: a row is on the lane of the next traced operation of its file, a close or a sync on that of the previous one;
a file that gets another name is on the lane that uses it under that. The rest shares lanes of its own.

Renames: those that Darshan counted, and those of TensorFlow's checkpoints, which writes every file under a temporary
name: `X.tempstate<number>` or `X.tmp<32 hex digits>` becomes X; the data shards of a saved part,
`P_temp/part-i-of-n.data-j-of-m`, become `P.data-k-of-n*m` when the parts are merged
(tensorflow/core/util/tensor_bundle/tensor_bundle.cc), just before the merged index is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from dxt_replay.profiler_merge.darshan.lanes import (
    first_not_below,
    lanes_where_clear,
    latest_before,
    latest_on_lanes,
)
from dxt_replay.profiler_merge.rebuild.counted import NOT_SEEN, TIMES, Operations, places_of, subtract
from dxt_replay.profiler_merge.rebuild.data import check_limit, data_rows
from dxt_replay.profiler_merge.rebuild.met import Found
from dxt_replay.profiler_merge.rebuild.metadata import CLOSE, SYNC, metadata_rows
from dxt_replay.traces.files import record_id
from dxt_replay.traces.schema import APIS, OPS, READ, WRITE
from dxt_replay.traces.stable_order import stable_order

MOST_ROWS = 1 << 24
"""Most opens, stats and syncs that are made for one process: the files with the most lose theirs, to protect memory."""

Traced = Mapping[str, np.ndarray] | np.ndarray
"""Columns of the traced operations of a batch of processes, by process and start: `process` (place in the batch,
ascending), `record_id` (uint64), `api`, `is_write` (bool), `offset`, `length`, `start_ns`, `end_ns`, `lane`."""

REBUILT = np.dtype(
    [("op", np.int8), ("api", np.int8), ("lane", np.int32), ("record_id", np.uint64), ("target_id", np.uint64)]
    + [(name, np.int64) for name in ("process", "offset", "length", "start_ns", "end_ns", "tie")]
)
"""A row, as in `traces.schema.OPS_SCHEMA` but for: process (place in the batch), record_id, target_id (the new name of
a rename, else 0), and tie, which orders rows that start together."""

_POSIX, _RENAME = APIS.index("POSIX"), OPS.index("rename")
_AFTER_ALL = 1 << 62
_COLUMNS = {"start": "start_ns", "end": "end_ns", "offset": "offset", "length": "length", "is_write": "is_write"}
_LATEST = int(np.iinfo(np.int64).max)
_TEMPORARY = re.compile(rb"(?P<final>.+)(?:\.tempstate\d+|\.tmp[0-9a-f]{32})", re.DOTALL)
_PART = re.compile(
    rb"(?P<prefix>.+)_temp/part-(?P<part>\d{5})-of-(?P<parts>\d{5})(?P<rest>\.data-(?P<shard>\d{5})-of-(?P<shards>\d{5}))",
    re.DOTALL,
)


@dataclass(kw_only=True)
class LogNames:
    """The names of a log: `by_record`, record id -> path, and the inverse, the last one if several have a path."""

    by_record: Mapping[int, bytes]
    _temporary: dict[int, bool] = field(default_factory=dict)

    @cached_property
    def by_path(self) -> Mapping[bytes, int]:
        """Path -> record id."""
        return {path: record for record, path in self.by_record.items()}

    def is_temporary(self, record: int) -> bool:
        """Whether a file gets its final name when it is complete."""
        if record not in self._temporary:
            self._temporary[record] = _TEMPORARY.fullmatch(self.by_record.get(record, b"")) is not None
        return self._temporary[record]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rebuilding:
    """rows: REBUILT, by process and start. names: record id -> path of new names that the log does not know.
    left_out: record id -> opens, stats and syncs that are too many to be made. met: for `Met.note`."""

    rows: np.ndarray
    names: Mapping[int, bytes]
    left_out: Mapping[int, int]
    met: tuple[Found, ...]


Renames = list[tuple[int, int, int]]
"""Record ids of the old and the new name, and when."""


LatestOnLanes = Callable[[tuple[np.ndarray, np.ndarray], np.ndarray], np.ndarray]
"""As the first two parameters of `latest_on_lanes`, for the traced operations."""


def rebuild(
    traced: Traced,
    counted: Mapping[str, np.ndarray],
    names: LogNames,
    processes: int = 1,
    latest: LatestOnLanes | None = None,
) -> Rebuilding:
    """The rows of a batch of `processes` from COUNTED of POSIX and STDIO, on the clock of `traced`.

    latest: of all operations, where `traced` are some of them.

    Raises: LogError when a process has more untraced reads and writes at a module than are rebuilt.
    """
    counted, left_out = _bounded(counted, processes)
    posix, stdio = counted["POSIX"], counted["STDIO"]
    begin_ns = _first_times(traced, counted, processes)
    new_names: dict[int, bytes] = {}
    renames = {
        process: _renames(counted, process, names, begin_ns, new_names) for process in _may_rename(counted, names)
    }
    parts, met, of_posix = [], list[Found](), (np.empty(0, np.int64), np.empty(0, np.int64))
    for process, found in renames.items():
        rows = np.zeros(len(found), dtype=REBUILT)
        rows["process"], rows["op"], rows["api"], rows["offset"], rows["tie"] = process, _RENAME, _POSIX, -1, _AFTER_ALL
        for place, name in enumerate(("record_id", "target_id", "start_ns")):
            rows[name] = [each[place] for each in found]
        rows["end_ns"] = rows["start_ns"]
        parts.append(rows)
    for module, files in counted.items():
        unknown_ns = begin_ns[files["process"]]
        of_module = by_file(traced, files, module)
        if module == "POSIX":
            of_posix = of_module
            # A file without any time is dealt with after it was written as a stream, or got its name.
            for process, found in renames.items():
                for _, target, at_ns in found:
                    unknown_ns[(files["process"] == process) & (files["record_id"] == np.uint64(target))] = at_ns
            closed = stdio[stdio["close_end"] != NOT_SEEN][::-1]
            at = places_of(closed, files["process"], files["record_id"])
            unknown_ns[at >= 0] = closed["close_end"][at[at >= 0]]
        made, of_data = _of_module(traced, files, of_module, unknown_ns, names.by_record)
        rows = np.zeros(len(made), dtype=REBUILT)
        for name in ("op", "offset", "length", "start_ns", "end_ns", "tie"):
            rows[name] = made[name]
        rows["process"], rows["record_id"] = (files[name][made["file"]] for name in ("process", "record_id"))
        rows["api"] = APIS.index(module)
        parts.append(rows)
        if of_data is not None:
            met.append(Found(module, *of_data))
    rows = _in_order(np.concatenate(parts))
    wanted = _wanted_lanes(rows, traced, posix, of_posix)
    for process, found in renames.items():
        mine = slice(*np.searchsorted(rows["process"], [process, process + 1]))
        _follow(rows["record_id"][mine], wanted[mine], found, names, new_names)
    operations = (traced["process"], traced["lane"])
    latest = latest or partial(
        latest_on_lanes, operations=operations, start_ns=traced["start_ns"], end_ns=traced["end_ns"]
    )
    rows = _with_lanes(rows, wanted, traced, processes, latest)
    return Rebuilding(rows=rows, names=new_names, left_out=left_out, met=tuple(met))


def by_file(traced: Traced, files: np.ndarray, module: str) -> tuple[np.ndarray, np.ndarray]:
    """The traced operations of counted files of a module, by file and start: their rows, and the file of each."""
    own = np.flatnonzero(traced["api"] == APIS.index(module))
    file = places_of(files, traced["process"][own], traced["record_id"][own])
    own, file = own[file >= 0], file[file >= 0]
    order = stable_order(file)
    return own[order], file[order]


def _of_module(
    traced: Traced,
    files: np.ndarray,
    of_files: tuple[np.ndarray, np.ndarray],
    unknown_ns: np.ndarray,
    paths: Mapping[int, bytes],
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
    """MADE of one module; and the counters that are left for its reads and writes, with GOT."""
    row, file = of_files
    ops = {name: traced[column][row] for name, column in _COLUMNS.items()} | {"file": file}
    stream = 2 * file + ops["is_write"]
    number = np.bincount(stream, minlength=2 * len(files)).reshape(-1, 2)

    def of_mask(mask: np.ndarray) -> Operations:
        mine = mask[file]
        return file[mine], ops["is_write"][mine], ops["length"][mine]

    left = files.copy()
    subtract(left, number * (files["shares"] == 1)[:, np.newaxis], of_mask)
    live = np.flatnonzero(left["count"].any(axis=1))
    ops["begins"] = np.ones(len(file), dtype=bool)
    if not len(live):
        return metadata_rows(files, ops, unknown_ns), None
    left = left[live]
    check_limit(left, paths)
    spent = np.zeros((2, 2 * len(files)), dtype=np.int64)
    spent[0] = NOT_SEEN
    np.maximum.at(spent[0], stream, ops["end"])
    np.add.at(spent[1], stream, ops["end"] - ops["start"])
    data, got = data_rows(left, spent.T.reshape(-1, 2, 2)[live], unknown_ns[live])
    data["file"] = live[data["file"]]
    pairs = {
        "file": "file",
        "start": "start_ns",
        "end": "end_ns",
        "offset": "offset",
        "length": "length",
        "begins": "begins",
    }
    together = {name: np.concatenate([ops[name], data[column]]) for name, column in pairs.items()}
    together["is_write"] = np.concatenate([ops["is_write"], data["op"] == WRITE])
    order = np.lexsort((together["start"], together["file"]))
    together = {name: values[order] for name, values in together.items()}
    return np.concatenate([data, metadata_rows(files, together, unknown_ns)]), (left, got)


def _first_times(traced: Traced, counted: Mapping[str, np.ndarray], processes: int) -> np.ndarray:
    """int64 (processes,): the first known instant, 0 if there is none."""
    first = np.full(processes, _LATEST)
    np.minimum.at(first, traced["process"], traced["start_ns"])
    for files in counted.values():
        for times in (*(files[name] for name in TIMES[:-2]), *files["first"].T, *files["last"].T):
            np.minimum.at(first, files["process"], np.where(times == NOT_SEEN, _LATEST, times))
    first[first == _LATEST] = 0
    return first


def _bounded(counted: Mapping[str, np.ndarray], processes: int) -> tuple[Mapping[str, np.ndarray], Mapping[int, int]]:
    """The files, of which those with the most opens, stats and syncs keep only their first and last open, in processes
    with more than MOST_ROWS of these; and how many rows each such file loses, by record id. No read is lost."""
    files = np.concatenate(list(counted.values()))
    made = 2 * files["opens"] + files["stats"] + files["syncs"]
    total = np.bincount(files["process"], weights=made, minlength=processes)
    if total.max(initial=0) <= MOST_ROWS:
        return counted, {}
    order = np.lexsort((made, files["process"]))
    reached = np.cumsum(made[order].astype(np.float64))
    reached -= (np.cumsum(total) - total)[files["process"][order]]
    cut = order[reached > MOST_ROWS]
    few = np.minimum(files["opens"][cut], 2)
    kept = 2 * few / np.maximum(made[cut], 1)
    for name, left in (("opens", few), ("stats", 0), ("syncs", 0)):
        files[name][cut] = left
    for name in ("seeks", "meta_ns"):
        files[name][cut] = (files[name][cut] * kept).astype(np.int64)
    lost = Counter[int]()
    for record, gone in zip(files["record_id"][cut].tolist(), (made[cut] - 2 * few).tolist(), strict=True):
        lost[record] += gone
    bounds = np.cumsum([len(each) for each in counted.values()])[:-1]
    return dict(zip(counted, np.split(files, bounds), strict=True)), +lost


def _wanted_lanes(
    rows: np.ndarray, traced: Traced, files: np.ndarray, of_posix: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Lane of the next traced operation of the same file, or of the previous one for a close or a sync; else -1."""
    wanted = np.full(len(rows), -1, dtype=np.int32)
    row, of_row = of_posix
    if not len(row):
        return wanted
    file = places_of(files, rows["process"], rows["record_id"])
    first, last = (np.searchsorted(of_row, file, side=side) for side in ("left", "right"))
    used = last > first
    first, last = first[used], last[used]
    following = first_not_below(traced["start_ns"][row], first, last, rows["start_ns"][used])
    after = np.isin(rows["op"][used], (CLOSE, SYNC))
    wanted[used] = traced["lane"][row[np.clip(following - after, first, last - 1)]]
    return wanted


def _with_lanes(
    rows: np.ndarray, wanted: np.ndarray, traced: Traced, processes: int, latest_of: LatestOnLanes
) -> np.ndarray:
    """The rows with lanes. A row that would overlap another one on the lane that it wanted gets a lane of its own."""
    used = np.zeros(processes, dtype=np.int32)
    np.maximum.at(used, traced["process"], np.asarray(traced["lane"]) + np.int32(1))
    # If one thread issued all traced operations, its untraced ones stay in order with them.
    wanted[(wanted < 0) & (used == 1)[rows["process"]]] = 0
    having = np.flatnonzero(wanted >= 0)

    def latest(having: np.ndarray) -> np.ndarray:
        """Latest end of the traced operations on each row's lane that start before it ends."""
        return latest_of((rows["process"][having], wanted[having]), rows["end_ns"][having])

    if len(having):
        # Durations of opens and the like are means: some reach into the operation before, and would look like another
        # thread's. They move behind it, unless they lost more than half of their duration.
        of_lane = rows["process"][having] * (1 + int(wanted.max())) + wanted[having]
        having = having[np.argsort(of_lane, kind="stable")]
        start, end = rows["start_ns"][having], rows["end_ns"][having]
        free = np.maximum(latest(having), latest_before(end, np.sort(of_lane)))
        reach = np.maximum(free, start) - start
        moved = (reach > 0) & (2 * reach <= end - start) & ~np.isin(rows["op"][having], (READ, WRITE))
        rows["start_ns"][having[moved]] = free[moved]
        rows["lane"] = wanted
        rows = _in_order(rows)
        wanted = rows["lane"].copy()
    having = np.flatnonzero(wanted >= 0)
    rows["lane"] = lanes_where_clear(wanted, rows["start_ns"], rows["end_ns"], latest(having), used, rows["process"])
    return rows


def _in_order(rows: np.ndarray) -> np.ndarray:
    # Of rows that start together, those of zero length come first: they must not follow an operation that ends later.
    lasts = rows["end_ns"] > rows["start_ns"]
    return rows[np.lexsort((rows["tie"], -rows["end_ns"], lasts, rows["start_ns"], rows["process"]))]


def _may_rename(counted: Mapping[str, np.ndarray], names: LogNames) -> list[int]:
    """The processes that may have renamed files, by what they wrote or by Darshan's counters."""
    found = set[int]()
    for files in counted.values():
        written = files["wrote"] & (files["close_end"] != NOT_SEEN)
        records, which = np.unique(files["record_id"][written], return_inverse=True)
        temporary = np.fromiter((names.is_temporary(record) for record in records.tolist()), bool, len(records))
        mine = files["renamed_from"] != 0
        mine[written] |= temporary[which]
        found.update(files["process"][mine].tolist())
    return sorted(found)


def _renames(
    counted: Mapping[str, np.ndarray], process: int, names: LogNames, begin_ns: np.ndarray, new_names: dict[int, bytes]
) -> Renames:
    """The renames of one process: those that follow the writing of temporary files, in order of time, then those of
    Darshan's counters. Adds to `new_names` those that the log does not know.

    A shard of a checkpoint counts as merged only if the merged index was opened. It is renamed after its part's index
    was read, and before the merged one is opened.
    """
    closed: dict[bytes, int] = {}
    opened: dict[bytes, int] = {}
    written, counted_renames = [], []
    for files in counted.values():
        files = files[slice(*np.searchsorted(files["process"], [process, process + 1]))]
        columns = (files[name].tolist() for name in ("record_id", "close_end", "open_start", "wrote", "renamed_from"))
        for record, close, opening, wrote, source in zip(*columns, strict=True):
            path = names.by_record.get(record)
            if path is None:
                continue
            if close != NOT_SEEN:
                closed[path] = max(close, closed.get(path, close))
                if wrote and names.is_temporary(record):
                    written.append((close, path))
            if opening != NOT_SEEN:
                opened[path] = min(opening, opened.get(path, opening))
            if source and source in names.by_record:
                counted_renames.append((names.by_record[source], path))
    found = []
    for close, path in written:
        temporary = _TEMPORARY.fullmatch(path)
        assert temporary is not None
        found.append((close, path, temporary["final"]))
        shard = _merged_shard(temporary["final"])
        if shard is not None and shard[1] in opened:
            final, index, part_index = shard
            at = min(max(close, closed.get(part_index, opened[index])), opened[index])
            found.append((max(at, close), temporary["final"], final))
    found.sort(key=lambda rename: rename[0])
    known = {(old, new) for _, old, new in found}
    for old, new in counted_renames:
        if (old, new) not in known:
            found.append((closed.get(old, opened.get(new, int(begin_ns[process]))), old, new))
    renames = []
    for at, *paths in found:
        # In a log with obfuscated names, the ids are those of the true names.
        source, target = (names.by_path[path] if path in names.by_path else record_id(path) for path in paths)
        if target not in names.by_record:
            new_names[target] = paths[1]
        renames.append((source, target, at))
    return renames


def _merged_shard(path: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Of a part's data shard: its name when the parts of a checkpoint are merged, the merged index, and the index of
    the part; None for any other file."""
    found = _PART.fullmatch(path)
    if found is None:
        return None
    shards = int(found["shards"])
    number = int(found["part"]) * shards + int(found["shard"])
    final = found["prefix"] + b".data-%05d-of-%05d" % (number, int(found["parts"]) * shards)
    return final, found["prefix"] + b".index", path[: -len(found["rest"])] + b".index"


def _follow(
    record: np.ndarray, wanted: np.ndarray, renames: Renames, names: LogNames, new_names: Mapping[int, bytes]
) -> None:
    """Give rows (n,) of one process without a lane that of the renamed file, or of the rest of its checkpoint: a write
    under another name must precede the reads of it, whatever the storage does in a replay."""
    having = np.flatnonzero(wanted >= 0)
    lanes = dict(zip(record[having].tolist(), wanted[having].tolist(), strict=True))
    records = {path: each for each, path in new_names.items()}
    for source, target, _ in reversed(renames):
        shard = _merged_shard(new_names.get(source) or names.by_record[source])
        chain = [source, target]
        beside = () if shard is None else (records.get(path, names.by_path.get(path)) for path in (shard[2], shard[1]))
        chain += [each for each in beside if each is not None]
        lane = next((lanes[each] for each in chain[1:] if each in lanes), -1)
        for each in chain if lane >= 0 else ():
            lanes.setdefault(each, lane)
    followed = np.fromiter((lanes.get(each, -1) for each in record.tolist()), np.int32, len(record))
    np.copyto(wanted, followed, where=wanted < 0)
