"""Opens, closes, stats and syncs of files, placed by the evidence of counters and of reads and writes. Pure.

Their numbers are the counters'. The first open and the last close have their recorded times; in a record of one rank,
so do the last open and the first close. Another open comes before an operation that returns to the start of the file,
the one after the widest gap first; opens for which there is none are spread over the recorded window. A close follows
the operation before the next open. Stats follow the opens, in equal shares. Syncs follow the writes, at equal
distances. Seeks reach no storage and get no rows.
The durations divide the recorded metadata time, less that of the seeks. A close lasts at most from the file's last
operation to its last close. Opens and stats share the rest: slow storage takes time to open a file that was read, and
hardly any to close it. All of them are shortened to the gap between the operations beside them.
"""

from __future__ import annotations

import numpy as np

from dxt_replay.profiler_merge.darshan.lanes import first_not_below
from dxt_replay.profiler_merge.rebuild.counted import NOT_SEEN
from dxt_replay.profiler_merge.rows import joined, rows_of
from dxt_replay.traces.schema import OPS, WRITE
from dxt_replay.traces.stable_order import places_in_groups, runs

OPEN, CLOSE, STAT, SYNC = (OPS.index(op) for op in ("open", "close", "stat", "sync"))

SEEK_NS = 1_000
"""Longest duration of a seek, which moves a number in the kernel: 0.4 to 1 us, measured on local disks and FUSE."""

_ROUNDED_NS = 10
"""Largest rounding error of a time difference: two times of a job of some days, as seconds in doubles."""

_LATEST = int(np.iinfo(np.int64).max)


def metadata_rows(files: np.ndarray, ops: np.ndarray, begins: np.ndarray, unknown_ns: np.ndarray) -> np.ndarray:
    """The rows of all `files` (COUNTED), of one process or several, as `ROW` whose `file` is the place in `files`.

    ops: such rows of reads and writes, by file and start. begins: whether the file may have been opened before each.
    unknown_ns (files,): time for rows without a dated neighbour, one after the other.
    """
    if not len(files):
        return rows_of({}, 0)
    count, own, opens = len(files), files["own"], files["opens"]
    first, behind = (np.searchsorted(ops["file"], np.arange(count), side=side) for side in ("left", "right"))
    used = behind > first
    begin, finish, last_start = np.full((3, count), NOT_SEEN)
    if used.any():
        begin[used], last_start[used] = ops["start_ns"][first[used]], ops["start_ns"][behind[used] - 1]
        finish[used] = np.maximum.reduceat(ops["end_ns"], first[used])
    dated, close_seen = files["open_start"] != NOT_SEEN, files["close_end"] != NOT_SEEN
    # Reads after the last close used a descriptor that stayed open to the end.
    left_open = used & close_seen & (last_start > files["close_end"]) & (opens > 1)
    closes = np.where(close_seen, opens, 0) - left_open
    each = files["meta_ns"] // np.maximum(opens + closes + files["stats"] + files["seeks"], 1)
    bounded = own & used & close_seen & ~left_open
    close_ns = np.where(bounded, np.minimum(each, np.maximum(files["close_end"] - finish, 0)), each)
    left_ns = files["meta_ns"] - files["seeks"] * np.minimum(each, SEEK_NS)
    each = (left_ns - closes * close_ns) // np.maximum(opens + files["stats"], 1)
    undated = each * (opens + files["stats"]) * ~(used | dated)
    undated_ns = np.where(used, begin, unknown_ns + _one_after_another(files["process"], unknown_ns, undated))
    syncs, ended = _syncs(files, ops, np.where(used, finish, np.where(dated, files["open_end"], undated_ns)))
    made = [syncs]

    # The first open, and the last. A reduced record has the first one of any rank: this rank's own is as late as its
    # first operation allows.
    one = np.flatnonzero((opens > 0) & (dated | used))
    latest = np.where(used, begin - each * (1 - -files["stats"] // np.maximum(opens, 1)), files["open_start"])
    start = np.where(own & dated, files["open_start"], np.maximum(files["open_start"], latest))
    end = np.where(own & dated & (opens == 1), files["open_end"], start + each)
    end = np.maximum(np.minimum(end, np.where(used, begin, _LATEST)), start)
    last = np.flatnonzero((opens > 1) & own & dated)
    last_end = np.maximum(files["open_end"], end)[last]
    # Those where a pass begins, and the place of stats of a file without an open.
    missing = opens - np.bincount(np.concatenate([one, last]), minlength=count)
    passes = _begins_of_passes(files, ops, begins, first, missing)
    bare = np.flatnonzero((opens == 0) & (files["stats"] > 0))
    bare_ns = np.where(used, begin - files["stats"] * each, undated_ns)[bare]
    file = np.concatenate([one, last, ops["file"][passes], bare])
    start = np.concatenate([start[one], np.maximum(last_end - each[last], end[last]), ops["start_ns"][passes], bare_ns])
    end = np.concatenate([end[one], last_end, ops["start_ns"][passes], bare_ns])
    dated_open = np.repeat([True, False, True], [len(one) + len(last), len(passes), len(bare)])
    order = np.lexsort((start, file))
    file, start, end, dated_open = file[order], start[order], end[order], dated_open[order]
    number, of_file = _numbers(file), np.bincount(file, minlength=count)
    # The rest of the opens, for which no operation speaks.
    spread = missing - np.bincount(ops["file"][passes], minlength=count)
    made.append(_spread(OPEN, spread, files["open_start"], files["open_end"], each, undated_ns))

    # The last close, and the first. They are one only if Darshan counted as much time from the first to the last: there
    # are more closes than opens if a descriptor was duplicated, or was open before the record began.
    last = np.flatnonzero(closes > 0)
    short = files["close_end"] - files["close_start"] <= files["meta_ns"] + _ROUNDED_NS
    after = np.where(used & ~left_open, finish, files["close_start"])
    close = np.where(own, files["close_end"] - close_ns, after)
    close = np.maximum(np.where(own & (closes == 1) & short, files["close_start"], close), files["close_start"])
    close_end = np.where(own, np.maximum(files["close_end"], close), close + close_ns)
    made.append(_rows(CLOSE, last, close[last], close_end[last], 8 * opens[last] + 8))
    two = own & (closes > 1)
    many = np.flatnonzero(two)
    one_end = np.maximum(np.minimum(files["close_start"] + close_ns, close), files["close_start"])
    made.append(_rows(CLOSE, many, files["close_start"][many], one_end[many], 8))
    # One before each open that begins another pass; the rest at equal distances.
    left = np.maximum(closes - (closes > 0) - two, 0)
    ends_pass = (number >= 1 + two[file]) & (number - 1 - two[file] < left[file])
    left -= np.bincount(file[ends_pass], minlength=count)
    made.append(_spread(CLOSE, left, files["close_start"], files["close_end"], close_ns, undated_ns))

    # What has a recorded time has its part of the metadata time; the rest is shared.
    fixed_ns, fixed = (
        np.zeros(count, dtype=np.int64),
        np.bincount(file[dated_open & (opens[file] > 0)], minlength=count),
    )
    np.add.at(fixed_ns, file, np.where(dated_open, end - start, 0))
    fixed_ns += np.where(closes > 0, close_end - close, 0) + np.where(two, one_end - files["close_start"], 0)
    loose = np.maximum(closes - (closes > 0) - two, 0)
    share = np.maximum(left_ns - fixed_ns - loose * close_ns, 0)
    share = share // np.maximum(opens + files["stats"] - fixed, 1)
    # Between an operation and the next come the close, the open and its stats, shorter where there is no room.
    at = first_not_below(ops["start_ns"], first[file], behind[file], start)
    following = np.where(
        at < behind[file], np.append(ops["start_ns"], 0)[np.minimum(at, len(ops["start_ns"]))], _LATEST
    )
    previous = np.where(at > first[file], np.append(ended, 0)[at - 1], NOT_SEEN)
    previous[1:] = np.where(number[1:] > 0, np.maximum(previous[1:], end[:-1]), previous[1:])
    previous = np.minimum(previous, start)
    stats, n = files["stats"][file], np.maximum(of_file[file], 1)
    stats = -(-(number + 1) * stats // n) - -(-number * stats // n)
    close = close_ns[file] * ends_pass
    opening = np.where(dated_open, 0, share[file])
    wanted = np.where(dated_open, 0, close) + opening + stats * share[file]
    room = np.where(dated_open, following - end, start - previous).astype(np.float64)
    scale = np.minimum(np.maximum(room, 0) / np.maximum(wanted, 1), 1.0)
    close = np.where(dated_open, np.minimum(close, start - previous), (close * scale).astype(np.int64))
    opening, stat = ((each * scale).astype(np.int64) for each in (opening, share[file]))
    start = np.where(dated_open, start, start - opening - stats * stat)
    end = np.where(dated_open, end, start + opening)
    made.append(
        _rows(CLOSE, file[ends_pass], previous[ends_pass], (previous + close)[ends_pass], 8 * number[ends_pass])
    )
    real = opens[file] > 0
    made.append(_rows(OPEN, file[real], start[real], end[real], 8 * number[real] + 1))
    row, place = np.repeat(np.arange(len(file)), stats), places_in_groups(stats)
    start = end[row] + place * stat[row]
    made.append(_rows(STAT, file[row], start, start + stat[row], 8 * number[row] + 2))
    return joined(made)


def _begins_of_passes(
    files: np.ndarray, ops: np.ndarray, begins: np.ndarray, first: np.ndarray, missing: np.ndarray
) -> np.ndarray:
    """Rows of `ops` that a `missing` open of their file precedes: what returns to the start first, then by the gap."""
    rows = np.flatnonzero((missing[ops["file"]] > 0) & begins & (np.arange(len(ops)) > first[ops["file"]]))
    file, start = ops["file"][rows], ops["start_ns"][rows]
    between = (start > files["open_start"][file]) & (~files["own"][file] | (start < files["open_end"][file]))
    rows, file = rows[between], file[between]
    goes_on_at = ops["offset"][rows - 1] + ops["length"][rows - 1]
    returns = (ops["offset"][rows] < goes_on_at) & (ops["offset"][rows] <= ops["offset"][first[file]])
    order = np.lexsort((ops["end_ns"][rows - 1] - ops["start_ns"][rows], ~returns, file))
    return np.sort(rows[order[_numbers(file[order]) < missing[file[order]]]])


def _syncs(files: np.ndarray, ops: np.ndarray, otherwise_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The j-th of n syncs after the j-th n-th of the writes; and the end of each operation with the syncs behind it.

    otherwise_ns (files,): when a file without writes is synced.
    """
    ended = ops["end_ns"].copy()
    written = np.flatnonzero(ops["op"] == WRITE)
    of_write = ops["file"][written]
    writes = np.bincount(of_write, minlength=len(files))
    spent = np.zeros(len(files), dtype=np.int64)
    np.add.at(spent, of_write, (ops["end_ns"] - ops["start_ns"])[written])
    # fsync counts as write time.
    each = np.maximum(files["spent_ns"][:, 1] - spent, 0) // np.maximum(files["syncs"], 1)
    file = np.repeat(np.arange(len(files)), files["syncs"])
    number = places_in_groups(files["syncs"])
    start, lasts = otherwise_ns[file] + number * each[file], each[file]
    mine = writes[file] > 0
    share = ((number + 1) * writes[file] - 1) // np.maximum(files["syncs"], 1)[file]
    at = written[((np.cumsum(writes) - writes)[file] + share)[mine]]
    next_start = np.append(np.where(ops["file"][1:] == ops["file"][:-1], ops["start_ns"][1:], _LATEST), _LATEST)
    closed = files["close_start"][file[mine]]
    until = np.minimum(next_start[at], np.where(closed > ended[at], closed, _LATEST))
    within = _numbers(at)
    several = np.bincount(at, minlength=len(ended))[at]
    lasts[mine] = np.minimum(lasts[mine], np.maximum(until - ended[at], 0) // several)
    start[mine] = ended[at] + within * lasts[mine]
    rows = _rows(SYNC, file, start, start + lasts, 5)
    np.maximum.at(ended, at, (start + lasts)[mine])
    return rows, ended


def _spread(
    op: int, counts: np.ndarray, begin: np.ndarray, end: np.ndarray, each: np.ndarray, undated_ns: np.ndarray
) -> np.ndarray:
    """`counts` rows of each file at equal distances inside a recorded window, or one after the other."""
    file, number = np.repeat(np.arange(len(counts)), counts), places_in_groups(counts)
    width = np.maximum((end - begin)[file] - each[file], 0)
    start = begin[file] + (width * ((number + 1) / (counts[file] + 1))).astype(np.int64)
    start = np.where(begin[file] == NOT_SEEN, undated_ns[file] + number * each[file], start)
    return _rows(op, file, start, start + each[file], 8 * number + (9 if op == OPEN else 8))


def _rows(op: int, file: np.ndarray, start: np.ndarray, end: np.ndarray, tie: np.ndarray | int) -> np.ndarray:
    return rows_of({"file": file, "start_ns": start, "end_ns": end, "tie": tie}, len(file), op=op, offset=-1)


def _numbers(group: np.ndarray) -> np.ndarray:
    """Number of each item within its run of equal values, from 0."""
    return places_in_groups(np.diff(np.append(runs(group), len(group))))


def _one_after_another(process: np.ndarray, unknown_ns: np.ndarray, lasts: np.ndarray) -> np.ndarray:
    """For each file, the time that the files before it take that begin at the same time of the same process."""
    order = np.lexsort((unknown_ns, process))
    new = np.append(True, (np.diff(unknown_ns[order]) != 0) | (np.diff(process[order]) != 0))
    reached = np.cumsum(lasts[order]) - lasts[order]
    found = np.empty(len(order), dtype=np.int64)
    found[order] = reached - reached[new][np.cumsum(new) - 1]
    return found
