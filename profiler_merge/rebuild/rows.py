"""Rebuilds the operations that no trace holds (reads, writes, metadata, renames) from the counters of processes. Pure.

Numbers and bytes are the counters', times lie in the windows of the counters, and the rest is inferred (`data`,
`metadata`). All rows are marked as reconstructed. All processes of a batch are rebuilt at once; the `rank` of a row is
the place of its process in the batch.

Lanes: a row is on the lane of the next traced operation of its file, a close or a sync on that of the previous one; a
file that gets another name is on the lane that uses it under that. The rest shares lanes of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from dxt_replay.profiler_merge.darshan.lanes import first_not_below, lanes_where_clear, latest_before, latest_on_lanes
from dxt_replay.profiler_merge.rebuild.counted import NOT_SEEN, TIMES, Operations, places_of, subtract
from dxt_replay.profiler_merge.rebuild.data import check_limit, data_rows
from dxt_replay.profiler_merge.rebuild.metadata import CLOSE, SYNC, metadata_rows
from dxt_replay.profiler_merge.rows import in_order, joined, rows_of
from dxt_replay.traces.schema import APIS, OPS, READ, RECONSTRUCTED, WRITE
from dxt_replay.traces.stable_order import stable_order

MOST_ROWS = 1 << 24
"""Most opens, stats and syncs that are made for one process: beyond, its files keep their first and last open alone."""

_POSIX, _RENAME = APIS.index("POSIX"), OPS.index("rename")
_AFTER_ALL = 1 << 62
_LATEST = int(np.iinfo(np.int64).max)

LatestOnLanes = Callable[[tuple[np.ndarray, np.ndarray], np.ndarray], np.ndarray]
"""As the first two parameters of `latest_on_lanes`, for the traced operations."""


def rebuild(
    traced: np.ndarray,
    record: np.ndarray,
    counted: Mapping[str, np.ndarray],
    names: Mapping[int, bytes],
    number: Callable[[np.ndarray], np.ndarray],
    processes: int = 1,
    latest: LatestOnLanes | None = None,
) -> tuple[np.ndarray, Counter[int], list[tuple[str, np.ndarray, np.ndarray]]]:
    """The rows (`ROW`, in order) of a batch of `processes` from COUNTED of POSIX and STDIO, on the clock of `traced`.

    traced: `ROW`, in order; record: uint64, the record id of each. names: path of each record. number: of the file of
    each record. latest: of all operations, where `traced` are some of them.
    Returns also how many opens, stats and syncs each record lacks because there are too many, and for `Met.note` the
    module, the counted files and GOT.
    Raises: LogError when a process has more untraced reads and writes at a module than are rebuilt.
    """
    counted, left_out = _bounded(counted, processes)
    begin_ns = _first_times(traced, counted, processes)
    renames, renamed = _renames(counted, names, begin_ns)
    renames["file"], renames["other_file"] = number(renamed["renamed_from"]), number(renamed["record_id"])
    parts, met = [renames], []
    for module, files in counted.items():
        unknown_ns = begin_ns[files["process"]]
        if module == "POSIX":
            # A file without any time is dealt with after it was written as a stream, or got its name.
            at = places_of(renamed, files["process"], files["record_id"])
            unknown_ns[at >= 0] = renames["start_ns"][at[at >= 0]]
            closed = counted["STDIO"][counted["STDIO"]["close_end"] != NOT_SEEN][::-1]
            at = places_of(closed, files["process"], files["record_id"])
            unknown_ns[at >= 0] = closed["close_end"][at[at >= 0]]
        made, found = _of_module(traced, by_file(traced, record, files, module), files, unknown_ns, names)
        if module == "STDIO":
            _write_buffers(made, files)
        made["api"], made["origin"] = APIS.index(module), RECONSTRUCTED
        made["rank"], made["file"] = files["process"][made["file"]], number(files["record_id"])[made["file"]]
        parts.append(made)
        met += [] if found is None else [(module, *found)]
    rows = in_order(joined(parts))
    wanted = _wanted_lanes(rows, traced, number(record))
    _follow(rows, wanted, renames)
    operations = traced["rank"], traced["lane"]
    latest = latest or partial(
        latest_on_lanes, operations=operations, start_ns=traced["start_ns"], end_ns=traced["end_ns"]
    )
    return _with_lanes(rows, wanted, traced, processes, latest), left_out, met


def _write_buffers(made: np.ndarray, files: np.ndarray) -> None:
    """Let the last write of a stream that was made of a descriptor (`fdopen`, as by np.save) last until the stream was
    closed, which wrote its buffer: it has no close of its own, since the descriptor stays open."""
    last = np.flatnonzero(made["op"] == WRITE)
    last = last[np.argsort(made["end_ns"][last], kind="stable")]
    place = np.full(len(files), -1)
    place[made["file"][last]] = last
    bare = files["own"] & (files["opens"] == 0) & (files["close_end"] != NOT_SEEN) & (place >= 0)
    mine, of = place[bare], files[bare]
    until = np.minimum(of["close_end"], made["end_ns"][mine] + of["meta_ns"])
    made["end_ns"][mine] = np.maximum(made["end_ns"][mine], until)


def by_file(traced: np.ndarray, record: np.ndarray, files: np.ndarray, module: str) -> tuple[np.ndarray, np.ndarray]:
    """The traced operations of counted files of a module, by file and start: their rows, and the file of each."""
    own = np.flatnonzero(traced["api"] == APIS.index(module))
    file = places_of(files, traced["rank"][own], record[own])
    own, file = own[file >= 0], file[file >= 0]
    order = stable_order(file)
    return own[order], file[order]


def _of_module(
    traced: np.ndarray,
    of_files: tuple[np.ndarray, np.ndarray],
    files: np.ndarray,
    unknown_ns: np.ndarray,
    paths: Mapping[int, bytes],
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
    """The rows of one module, by place in `files`; and the counters that are left for its reads and writes, with
    GOT."""
    row, file = of_files
    own = traced[row]
    own["file"] = file
    is_write = own["op"] == WRITE
    stream = 2 * file + is_write
    number = np.bincount(stream, minlength=2 * len(files)).reshape(-1, 2)

    def of_mask(mask: np.ndarray) -> Operations:
        mine = mask[file]
        return file[mine], is_write[mine], own["length"][mine]

    left = files.copy()
    subtract(left, number * (files["shares"] == 1)[:, np.newaxis], of_mask)
    live = np.flatnonzero(left["count"].any(axis=1))
    if not len(live):
        return metadata_rows(files, own, np.ones(len(own), dtype=bool), unknown_ns), None
    left = left[live]
    check_limit(left, paths)
    spent = np.zeros((2, 2 * len(files)), dtype=np.int64)
    spent[0] = NOT_SEEN
    np.maximum.at(spent[0], stream, own["end_ns"])
    np.add.at(spent[1], stream, own["end_ns"] - own["start_ns"])
    data, begins, got = data_rows(left, spent.T.reshape(-1, 2, 2)[live], unknown_ns[live])
    data["file"] = live[data["file"]]
    together, begins = joined([own, data]), np.concatenate([np.ones(len(own), dtype=bool), begins])
    order = np.lexsort((together["start_ns"], together["file"]))
    return joined([data, metadata_rows(files, together[order], begins[order], unknown_ns)]), (left, got)


def _first_times(traced: np.ndarray, counted: Mapping[str, np.ndarray], processes: int) -> np.ndarray:
    """int64 (processes,): the first known instant, 0 if there is none."""
    first = np.full(processes, _LATEST)
    np.minimum.at(first, traced["rank"], traced["start_ns"])
    for files in counted.values():
        for times in (*(files[name] for name in TIMES[:-2]), *files["first"].T, *files["last"].T):
            np.minimum.at(first, files["process"], np.where(times == NOT_SEEN, _LATEST, times))
    first[first == _LATEST] = 0
    return first


def _bounded(counted: Mapping[str, np.ndarray], processes: int) -> tuple[Mapping[str, np.ndarray], Counter[int]]:
    """The files without the opens (but the first and the last), stats and syncs of processes that have more than
    MOST_ROWS of these; and how many rows each record loses. No read is lost."""
    files = np.concatenate(list(counted.values()))
    made = 2 * files["opens"] + files["stats"] + files["syncs"]
    cut = np.bincount(files["process"], weights=made, minlength=processes)[files["process"]] > MOST_ROWS
    few, lost = np.minimum(files["opens"], 2), Counter[int]()
    if not cut.any():
        return counted, lost
    for name in ("seeks", "meta_ns"):
        files[name][cut] = (files[name] * (2 * few / np.maximum(made, 1))).astype(np.int64)[cut]
    for name, left in (("opens", few), ("stats", 0 * few), ("syncs", 0 * few)):
        files[name][cut] = left[cut]
    for each, gone in zip(files["record_id"][cut].tolist(), (made - 2 * few)[cut].tolist(), strict=True):
        lost[each] += gone
    bounds = np.cumsum([len(each) for each in counted.values()])[:-1]
    return dict(zip(counted, np.split(files, bounds), strict=True)), +lost


def _renames(
    counted: Mapping[str, np.ndarray], names: Mapping[int, bytes], begin_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The renames that Darshan counted, when the file was closed under its old name, or opened under the new one; and
    the counted files that got their names."""
    files = counted["POSIX"]
    renamed = files[[bool(each) and each in names for each in files["renamed_from"].tolist()]]
    closed = np.full(len(renamed), NOT_SEEN)
    for each in counted.values():
        at = places_of(each, renamed["process"], renamed["renamed_from"])
        closed[at >= 0] = np.maximum(closed[at >= 0], each["close_end"][at[at >= 0]])
    opened = np.where(renamed["open_start"] != NOT_SEEN, renamed["open_start"], begin_ns[renamed["process"]])
    when = np.where(closed != NOT_SEEN, closed, opened)
    columns = {"rank": renamed["process"], "start_ns": when, "end_ns": when}
    same = {"op": _RENAME, "api": _POSIX, "offset": -1, "tie": _AFTER_ALL, "origin": RECONSTRUCTED}
    return rows_of(columns, len(renamed), **same), renamed


def _wanted_lanes(rows: np.ndarray, traced: np.ndarray, file: np.ndarray) -> np.ndarray:
    """Lane of the next traced operation of the same file, or of the previous one for a close or a sync; else -1."""
    wanted = np.full(len(rows), -1, dtype=np.int32)
    own = np.flatnonzero(traced["api"] == _POSIX)
    if not len(own) or not len(rows):
        return wanted
    most = 1 + max(int(file.max()), int(rows["file"].max()))
    of_file, of_row = traced["rank"][own] * most + file[own], rows["rank"].astype(np.int64) * most + rows["file"]
    order = stable_order(of_file)
    own, of_file = own[order], of_file[order]
    first, last = (np.searchsorted(of_file, of_row, side=side) for side in ("left", "right"))
    used = last > first
    first, last = first[used], last[used]
    following = first_not_below(traced["start_ns"][own], first, last, rows["start_ns"][used])
    after = np.isin(rows["op"][used], (CLOSE, SYNC))
    wanted[used] = traced["lane"][own[np.clip(following - after, first, last - 1)]]
    return wanted


def _follow(rows: np.ndarray, wanted: np.ndarray, renames: np.ndarray) -> None:
    """Give the rows of a renamed file that have no lane the lane that uses it under its new name: a write must precede
    the reads of it, whatever the storage does in a replay."""
    for rename in renames[::-1]:
        mine = np.flatnonzero(rows["rank"] == rename["rank"])
        under_new = mine[(rows["file"][mine] == rename["other_file"]) & (wanted[mine] >= 0)]
        under_old = mine[(rows["file"][mine] == rename["file"]) & (wanted[mine] < 0)]
        if len(under_new):
            wanted[under_old] = wanted[under_new[-1]]


def _with_lanes(
    rows: np.ndarray, wanted: np.ndarray, traced: np.ndarray, processes: int, latest_of: LatestOnLanes
) -> np.ndarray:
    """The rows with lanes. A row that would overlap another one on the lane that it wanted gets a lane of its own."""
    used = np.zeros(processes, dtype=np.int32)
    np.maximum.at(used, traced["rank"], traced["lane"] + np.int32(1))
    # If one thread issued all traced operations, its untraced ones stay in order with them.
    wanted[(wanted < 0) & (used == 1)[rows["rank"]]] = 0
    having = np.flatnonzero(wanted >= 0)

    def latest(having: np.ndarray) -> np.ndarray:
        """Latest end of the traced operations on each row's lane that start before it ends."""
        return latest_of((rows["rank"][having].astype(np.int64), wanted[having]), rows["end_ns"][having])

    if len(having):
        # Durations of opens and the like are means: some reach into the operation before, and would look like another
        # thread's. They move behind it, unless they lost more than half of their duration.
        of_lane = rows["rank"][having] * (1 + int(wanted.max())) + wanted[having]
        having = having[np.argsort(of_lane, kind="stable")]
        start, end = rows["start_ns"][having], rows["end_ns"][having]
        free = np.maximum(latest(having), latest_before(end, np.sort(of_lane)))
        reach = np.maximum(free, start) - start
        moved = (reach > 0) & (2 * reach <= end - start) & ~np.isin(rows["op"][having], (READ, WRITE))
        rows["start_ns"][having[moved]] = free[moved]
        rows["lane"] = wanted
        rows = in_order(rows)
        wanted = rows["lane"].copy()
    having = np.flatnonzero(wanted >= 0)
    rows["lane"] = lanes_where_clear(wanted, rows["start_ns"], rows["end_ns"], latest(having), used, rows["rank"])
    return rows
