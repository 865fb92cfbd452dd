"""Reads and writes that no trace holds, from the counters of their files. Pure.

Exact: their number, their bytes and the histogram of their sizes; the common sizes as far as bins and bytes hold them;
the first start and the last end. Inferred, by these rules:
- Sizes that are not among the common ones are equal within their bin.
- The accesses of a reduced record are dealt to its ranks in turn, the largest first.
- A pass begins where Darshan counted no sequential access (READS - SEQ_READS), or as often as the bytes need. Each has
  as many accesses of every size, the largest first. Inside of it they go on, except for the counted jumps
  (SEQ - CONSEC), which come at equal distances: the counted first stride as often as counted, then equal gaps up to the
  highest offset. What begins with a jump was appended, or goes on where a trace ended: it ends at the highest offset.
- A rank that shares a file works in its own part of it, unless all ranks begin at its start.
- Times are even inside the window that is counted. The last pass follows the last open, if its time is known.

A *stream* is one direction of one file: stream 2 * i holds the reads of file i, stream 2 * i + 1 its writes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dxt_replay.profiler_merge.rebuild.counted import BOUNDS, NOT_SEEN, SIZES, TOP, share_of
from dxt_replay.profiler_merge.rows import rows_of
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import READ, WRITE
from dxt_replay.traces.stable_order import stable_order
from dxt_replay.traces.units import format_bytes

RECONSTRUCT_LIMIT = 10_000_000
"""Most reads and writes of one process that are rebuilt; each takes some 400 bytes of memory."""

_MOST_OF_RECORD = 1 << 31
"""Most of one record: the sums over its sizes then fit 64 bits."""

_LOWEST = np.append(0, BOUNDS + 1)
_UNLIMITED = float(1 << 62)

GOT = np.dtype(
    [(name, np.int64) for name in ("count", "moved", "seq", "consec", "end", "rows", "bytes")]
    + [("sizes", np.int64, (len(SIZES),))]
)
"""The counters of COUNTED, counted again of what was rebuilt: count, moved and sizes of the whole record, the others of
this share of it. rows, bytes: of this share, too."""


def data_rows(
    files: np.ndarray, traced: np.ndarray, unknown_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The reads and writes of `files` (COUNTED, without what is traced) as `ROW`, by stream and in their order, `file`
    being the place in `files`; whether the file may have been opened before each (n,); and GOT (files, 2).

    traced: int64 (files, 2, 2), the latest end of, and the time in, the traced operations of each direction.
    unknown_ns (files,): time for the rows of a file without times.
    """
    stream, size, number = sizes_of(files)
    got = np.zeros(2 * len(files), dtype=GOT)
    np.add.at(got["count"], stream, number)
    np.add.at(got["moved"], stream, size * number)
    np.add.at(got["sizes"], (stream, np.searchsorted(BOUNDS, size)), number)
    share, shares = files["share"][stream // 2], files["shares"][stream // 2]
    until = np.cumsum(number)
    before = until - number
    start = before[np.searchsorted(stream, stream)]
    # Rank k of n has the accesses k, k + n, k + 2 n ...
    mine = (until - start - share + shares - 1) // shares - (before - start - share + shares - 1) // shares
    stream, size = stream.repeat(mine), size.repeat(mine)
    if not len(stream):
        return rows_of({}, 0), np.empty(0, dtype=bool), got.reshape(-1, 2)
    order, run, offset, begins = _placed(files, stream, size)
    stream, length = stream[order], size[order]
    # Darshan begins at byte 0 with each open.
    last_byte = np.maximum(np.append(0, offset[:-1] + length[:-1]) - 1, 0)
    last_byte[begins] = 0
    got["rows"] = np.bincount(stream, minlength=len(got))
    np.add.at(got["bytes"], stream, length)
    got["seq"] = np.bincount(stream[offset > last_byte], minlength=len(got))
    got["consec"] = np.bincount(stream[offset == last_byte + 1], minlength=len(got))
    np.maximum.at(got["end"], stream, offset + length)
    start_ns, end_ns = _times(files, stream, run, traced, unknown_ns)
    columns = {"op": np.where(stream % 2, WRITE, READ), "file": stream // 2, "offset": offset, "length": length}
    rows = rows_of({**columns, "start_ns": start_ns, "end_ns": end_ns}, len(stream))
    return rows, begins, got.reshape(-1, 2)


def sizes_of(files: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stream, size and number of each size of whole records, by stream and falling size."""
    count, moved = files["count"].reshape(-1), files["moved"].reshape(-1)
    bins = files["sizes"].reshape(-1, len(SIZES)).copy()
    missing = count - bins.sum(axis=1)  # old versions and streams have no histogram
    short = np.flatnonzero(missing > 0)
    bins[short, np.searchsorted(BOUNDS, moved[short] // count[short])] += missing[short]
    for stream in np.flatnonzero(missing < 0).tolist():
        bins[stream] = np.diff(np.minimum(np.cumsum(bins[stream]), count[stream]), prepend=0)
    # What the bytes are above the least that the bins allow, and below the most.
    above = moved - (bins * _LOWEST).sum(axis=1)
    below = np.where(bins[:, -1] > 0, _UNLIMITED, (bins[:, :-1] * BOUNDS.astype(np.float64)).sum(axis=1) - moved)
    found = []
    for place in range(TOP):
        size, often = files["access"][:, place], files["access_count"][:, place]
        at = np.searchsorted(BOUNDS, size)
        lower, upper = (size - _LOWEST[at]).repeat(2), np.maximum(np.append(BOUNDS, 0)[at] - size, 0).repeat(2)
        streams, at = np.arange(len(count)), at.repeat(2)
        able = np.minimum(bins[streams, at], np.where(lower > 0, above // np.maximum(lower, 1), count))
        able = np.minimum(able, np.where(upper > 0, below / np.maximum(upper, 1), count)).astype(np.int64)
        able = np.maximum(np.where((size > 0).repeat(2), able, 0), 0).reshape(-1, 2)
        # Darshan counts the sizes of both directions together.
        reads = np.minimum(often * able[:, 0] // np.maximum(able.sum(axis=1), 1), able[:, 0])
        writes = np.minimum(often - reads, able[:, 1])
        used = np.stack([np.minimum(often - writes, able[:, 0]), writes], axis=1).reshape(-1)
        bins[streams, at] -= used
        above, below = above - used * lower, below - used * upper.astype(np.float64)
        found.append((streams, size.repeat(2), used))
    room = bins[:, :-1] * (BOUNDS - _LOWEST[:-1])
    room = np.column_stack([room, np.where(bins[:, -1] > 0, np.maximum(above - room.sum(axis=1), 0), 0)])
    part = np.clip(above / np.maximum(room.sum(axis=1), 1), 0.0, 1.0)
    until = np.floor(np.cumsum(room, axis=1) * part[:, np.newaxis]).astype(np.int64)
    last = len(SIZES) - 1 - np.argmax(bins[:, ::-1] > 0, axis=1)
    until = np.where(np.arange(len(SIZES)) >= last[:, np.newaxis], above[:, np.newaxis], until)
    stream, at = np.nonzero(bins)
    number = bins[stream, at]
    mean, rest = np.divmod(number * _LOWEST[at] + np.diff(until, axis=1, prepend=0)[stream, at], number)
    found += [(stream, np.maximum(mean + 1, 0), rest), (stream, np.maximum(mean, 0), number - rest)]
    stream, size, number = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((-size, stream))
    order = order[number[order] > 0]
    return stream[order], size[order], number[order]


def check_limit(files: np.ndarray, paths: Mapping[int, bytes]) -> None:
    """Raises: LogError where `files` count more than can be rebuilt, with the file that has the most."""
    number = files["count"].sum(axis=1) / files["shares"]
    of_process = np.bincount(files["process"], weights=number)
    worst = int(of_process.argmax()) if len(of_process) else 0
    if not len(files) or (of_process[worst] <= RECONSTRUCT_LIMIT and files["count"].max() <= _MOST_OF_RECORD):
        return
    most = int(np.where(files["process"] == worst, number, 0).argmax())
    path = paths.get(int(files["record_id"][most]), b"").decode("utf-8", "backslashreplace")
    moved = int(files["moved"][most].sum() / files["shares"][most])
    raise LogError(
        f"the counters of one process have {int(of_process[worst]):,} reads and writes that no trace holds, "
        f"{int(number[most]):,} of them ({format_bytes(moved)}) of {path or 'a file without a name'}: more than the "
        f"{RECONSTRUCT_LIMIT:,} that are rebuilt at most. --exclude GLOB leaves such a file out, and --no-reconstruct "
        "all that was not traced"
    )


def _placed(files: np.ndarray, stream: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, ...]:
    """The order of accesses, by stream and pass, and in it the number of each one's pass, its offset, and whether a
    pass begins there that an open may precede."""
    streams = 2 * len(files)
    count = np.bincount(stream, minlength=streams)
    moved = np.zeros(streams, dtype=np.int64)
    np.add.at(moved, stream, size)
    share, shares = files["share"].repeat(2), files["shares"].repeat(2)
    ordered = (files["consec"] >= 0).reshape(-1)
    back_of_all = np.where(ordered, np.maximum(files["count"] - files["seq"], 0).reshape(-1), 0)
    back = share_of(back_of_all.reshape(-1, 2), files).reshape(-1)
    jumps = share_of(np.maximum(files["seq"] - files["consec"], 0), files).reshape(-1) * ordered
    end = files["end"].reshape(-1)
    own_part = (shares > 1) & (back_of_all < shares) & (files["moved"].reshape(-1) <= end)
    low, high = np.where(own_part, end * share // shares, 0), np.where(own_part, end * (share + 1) // shares, end)
    # With more jumps than not, the ranks take turns: each works all over the file.
    of_all, mean = files["count"].reshape(-1), files["moved"].reshape(-1) // np.maximum(files["count"].reshape(-1), 1)
    turns = own_part & (2 * (files["seq"] - files["consec"]).reshape(-1) > of_all)
    low = np.where(turns, np.minimum(share * mean, end), low)
    high = np.where(turns, np.maximum(end - (shares - 1 - share) * mean, low), high)
    passes = np.maximum(back, np.where(own_part, 1, -(-moved // np.maximum(high - low, 1))))
    passes = np.clip(passes, 1, np.maximum(count, 1))
    jumps = np.clip(jumps - (own_part & (back == 0)), 0, count - (passes - (back == 0)))
    ahead = (back == 0) & (shares == 1) & (jumps > 0)
    appended = (passes == 1) & (jumps == 0) & (shares == 1)
    low = np.where(appended, np.maximum(end - moved, 0), low)

    first = np.cumsum(count) - count
    first_run = np.cumsum(passes) - passes
    run = first_run[stream] + (np.arange(len(stream)) - first[stream]) % passes[stream]
    order = stable_order(run)
    run, size, stream = run[order], size[order], stream[order]
    begins = np.append(True, run[1:] != run[:-1])
    starts = np.flatnonzero(begins)
    run = np.cumsum(begins) - 1  # runs without an access have no number any more
    of_run = stream[starts]

    able = ~begins
    able[first[ahead]] = True
    candidates = np.flatnonzero(able)
    of = stream[candidates]
    total = np.bincount(of, minlength=streams)
    number = np.arange(len(of)) - (np.cumsum(total) - total)[of]
    wanted = np.minimum(jumps, total)[of]
    chosen = number * wanted % np.maximum(total[of], 1) < wanted
    jump = candidates[chosen]
    of = stream[jump]
    done = np.bincount(of, minlength=streams)
    number = np.arange(len(of)) - (np.cumsum(done) - done)[of]
    strided = number < files["stride_count"].repeat(2)[of]
    stride = files["stride"].repeat(2)
    room = np.maximum((high - low)[of_run] - np.add.reduceat(size, starts), 0)
    with_stride = np.bincount(run[jump[strided]], minlength=len(starts))
    fits = with_stride * stride[of_run].astype(np.float64) <= room
    strided &= fits[run[jump]]
    with_stride *= fits
    others = np.bincount(run[jump], minlength=len(starts)) - with_stride
    each = (room - with_stride * stride[of_run]) // np.maximum(others, 1)
    gap = np.zeros(len(size), dtype=np.int64)
    gap[jump] = np.where(strided, stride[of], each[run[jump]])
    # The last jump of a stream is as wide as it takes to reach the highest offset.
    last = jump[np.append(of[1:] != of[:-1], True)] if len(jump) else jump
    gap[last] += np.maximum(room - np.add.reduceat(gap, starts), 0)[run[last]]
    reached = np.cumsum(size + gap)
    place = reached - size - (reached - size - gap)[starts][run]
    # Without a jump, the last of several passes begins as far behind as going back allows.
    moved = np.add.reduceat(size, starts)
    most = np.zeros(streams, dtype=np.int64)
    np.maximum.at(most, of_run, moved)
    final = np.append(of_run[1:] != of_run[:-1], True) & (jumps == 0)[of_run] & (passes > 1)[of_run]
    final &= most[of_run] < (high - low)[of_run]
    before = np.append(0, moved[:-1])
    shift = np.where(final, np.minimum(room, np.maximum(before - 1, 0)), 0)
    begins[starts[shift > 0]] = False
    return order, run, low[stream] + place + shift[run], begins


def _times(
    files: np.ndarray, stream: np.ndarray, run: np.ndarray, traced: np.ndarray, unknown_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each access: even, without overlap, from the first start to the last end that were counted."""
    opened, closed = files["open_start"].repeat(2), files["close_end"].repeat(2)
    begin, end = files["first"].reshape(-1), files["last"].reshape(-1)
    begin = np.where(begin != NOT_SEEN, begin, np.where(opened != NOT_SEEN, opened, unknown_ns.repeat(2)))
    end = np.where(end != NOT_SEEN, end, np.where(closed != NOT_SEEN, closed, begin))
    begin = np.maximum(begin, traced[..., 0].reshape(-1))  # after a trace that stopped
    end = np.maximum(begin, end)
    spent = np.maximum(files["spent_ns"] - traced[..., 1], 0).reshape(-1)
    # The accesses of the last pass follow the last open, if that is known.
    first_run, last_run = np.full(len(begin), len(run)), np.zeros(len(begin), dtype=np.int64)
    np.minimum.at(first_run, stream, run)
    np.maximum.at(last_run, stream, run)
    reopened = files["open_end"].repeat(2)
    splits = (files["own"] & (files["opens"] > 1)).repeat(2) & (last_run > first_run)
    splits &= (begin < reopened) & (reopened < end)
    late = splits[stream] & (run == last_run[stream])
    part = 2 * stream + late
    count = np.bincount(part, minlength=2 * len(begin)).reshape(-1, 2)
    lasting = (files["meta_ns"] // np.maximum(2 * files["opens"] + files["stats"] + files["seeks"], 1)).repeat(2)
    before = np.maximum(reopened - lasting - 1, begin)
    late_ns = np.maximum(
        (spent * (count[:, 1] / np.maximum(count.sum(axis=1), 1))).astype(np.int64), spent - (before - begin)
    )
    late_ns = np.where(splits, np.clip(np.minimum(late_ns, end - reopened), 0, spent), 0)
    spent = np.column_stack([spent - late_ns, late_ns])
    # A single access would fill its whole part.
    parts_end = np.where(count[:, 0] == 1, np.minimum(before, begin + spent[:, 0]), before)
    parts_begin = np.where(count[:, 1] == 1, np.maximum(reopened, end - late_ns), reopened)
    begin, end = np.column_stack([begin, parts_begin]), np.column_stack([np.where(splits, parts_end, end), end])
    longest = files["longest_ns"].reshape(-1) * files["own"].repeat(2)
    longest = np.column_stack([longest, np.zeros_like(longest)])
    return _evenly(part, *(each.reshape(-1) for each in (begin, end, spent, longest)))


def _evenly(
    part: np.ndarray, begin: np.ndarray, end: np.ndarray, spent: np.ndarray, longest: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of accesses (n,) sorted by `part`, which last `spent` together, or all the time from begin to end
    if that is shorter, or if there is only one. The first lasts `longest`, because caches are cold then, if that was
    counted and leaves the others a nanosecond each."""
    count = np.bincount(part, minlength=len(begin))
    number = np.arange(len(part)) - (np.cumsum(count) - count)[part]
    window = np.maximum(end - begin, 0)
    spent = np.where(count > 1, np.minimum(spent, window), window)
    idle = ((window - spent) / np.maximum(count - 1, 1))[part] * number
    cold = (count > 1) & (longest * count > spent) & (longest + count - 1 <= spent)
    first = np.where(cold, longest, 0)
    each, rest = np.divmod(spent - first, np.maximum(count - cold, 1))
    others = number - cold[part]
    done = first[part] * (number > 0) + np.maximum(others, 0) * each[part] + np.clip(others, 0, rest[part])
    lasts = np.where(others < 0, first[part], each[part] + ((others >= 0) & (others < rest[part])))
    start = begin[part] + done + idle.astype(np.int64)
    return start, np.minimum(start + lasts, (begin + window)[part])
