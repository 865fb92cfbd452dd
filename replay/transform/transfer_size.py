"""Changes the transfer size: requests for streams end at its multiples. Exact: the same bytes are read. Pure."""

from __future__ import annotations

import dataclasses

import numpy as np

from dxt_replay.replay.transform.rank_work import NOTHING, TRANSFORMED, RankWork, exchanged
from dxt_replay.replay.transform.read_data import RequestCost

NO_STREAM = -1


def with_transfer_size(work: RankWork, chosen: np.ndarray, transfer_bytes: int, cost: RequestCost) -> RankWork:
    """The operations, with the reads `chosen` (bool) merged or split into requests of `transfer_bytes`.

    Requests end at multiples of `transfer_bytes` and at the end of a stream. A request takes the place of the first
    read with bytes of it, and feeds the earliest fetch that one of its reads fed. It is `transformed` unless the
    capture has the same read.
    """
    stream = streams_of(work, chosen & work.data_reads)
    at = np.flatnonzero(stream != NO_STREAM)
    if not len(at):
        return work
    at = at[np.lexsort((at, stream[at]))]
    piece = _pieces(work, at, transfer_bytes)
    request = _requests(stream[at][piece.read], piece.begin, transfer_bytes)
    first = np.flatnonzero(np.diff(request, prepend=-1))
    made = _made(work, at, piece, request, first, cost)
    return _in_place(work, at, piece, first, made)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pieces:
    """The reads, cut at multiples of the transfer size: the read of each piece (an index into `at`), and its bytes."""

    read: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    is_first: np.ndarray


def _pieces(work: RankWork, at: np.ndarray, size: int) -> _Pieces:
    begin = work.offset[at]
    end = begin + work.length[at]
    count = (end - 1) // size - begin // size + 1
    read = np.repeat(np.arange(len(at)), count)
    nth = np.arange(len(read)) - np.repeat(np.cumsum(count) - count, count)
    border = (begin[read] // size + nth) * size
    return _Pieces(
        read=read,
        begin=np.maximum(border, begin[read]),
        end=np.minimum(border + size, end[read]),
        is_first=nth == 0,
    )


def _requests(stream: np.ndarray, begin: np.ndarray, size: int) -> np.ndarray:
    """Number of the request of each piece: a new one for each stream and each multiple of the size."""
    block = begin // size
    new = (np.diff(stream, prepend=-1) != 0) | (np.diff(block, prepend=-1) != 0)
    return np.cumsum(new) - 1


def _made(
    work: RankWork, at: np.ndarray, piece: _Pieces, request: np.ndarray, first: np.ndarray, cost: RequestCost
) -> RankWork:
    """The requests, one row each, in the order of streams; `first`: the first piece of each."""
    source = at[piece.read]
    made = work.rows(source[first])
    last = np.append(first[1:], len(request)) - 1
    begin, end = piece.begin[first], piece.end[last]
    share = (piece.end - piece.begin) / work.length[source]
    of_bytes = np.bincount(request, weights=share * cost.of_bytes(work.duration_ns[source]))
    duration = np.rint(cost.latency_ns + of_bytes).astype(np.int64)
    busy = np.bincount(request, weights=share * work.busy_ns[source])
    never = np.iinfo(np.int64).max
    feeds = np.minimum.reduceat(np.where(work.feeds[source] == NOTHING, never, work.feeds[source]), first)
    same = (begin == made.offset) & (end - begin == made.length)
    return dataclasses.replace(
        made,
        offset=begin,
        length=end - begin,
        feeds=np.where(feeds == never, NOTHING, feeds),
        think_ns=np.where(piece.is_first[first], made.think_ns, 0),
        duration_ns=np.where(same, made.duration_ns, duration),
        busy_ns=np.where(same, made.busy_ns, np.rint(busy)).astype(np.int64),
        origin=np.where(same, made.origin, TRANSFORMED).astype(made.origin.dtype),
    )


def _in_place(work: RankWork, at: np.ndarray, piece: _Pieces, first: np.ndarray, made: RankWork) -> RankWork:
    """Insert the requests among the operations that stay. Think time between merged reads moves after them."""
    absorbed = np.zeros(len(work), dtype=np.int64)
    begins = piece.is_first.copy()
    begins[first] = False
    lost = at[piece.read[begins]]
    # The think time of a read that was held back is not work of the lane.
    absorbed[lost] = np.where(work.held[lost], 0, work.think_ns[lost])
    result, place = exchanged(work, at, made, at[piece.read[first]], made.offset)
    return dataclasses.replace(result, think_ns=result.think_ns + _after(work, absorbed, result, place))


def _after(work: RankWork, absorbed: np.ndarray, result: RankWork, place: np.ndarray) -> np.ndarray:
    """Think times of removed reads, int64 by row of `result`: each goes to the lane's next operation."""
    added = np.zeros(len(result), dtype=np.int64)
    for lane in np.unique(work.lane[absorbed > 0]).tolist():
        mine = np.flatnonzero(result.lane == lane)
        lost = np.flatnonzero((work.lane == lane) & (absorbed > 0))
        taker = np.searchsorted(place[mine], lost)
        kept = taker < len(mine)
        np.add.at(added, mine[taker[kept]], absorbed[lost[kept]])
    return added


def streams_of(work: RankWork, chosen: np.ndarray) -> np.ndarray:
    """int64 (n,): number of the stream that each operation belongs to, NO_STREAM outside of `chosen` (bool).

    A read continues a stream if it begins at the byte at which the stream's last read of the same lane and file ended.
    A stream may continue in another lane, because the buffer belongs to the open file, not to the thread.
    """
    stream = np.full(len(work), NO_STREAM, dtype=np.int64)
    at = np.flatnonzero(chosen)
    if not len(at):
        return stream
    at = at[np.lexsort((at, work.lane[at], work.file_id[at]))]
    file_id, lane, begin = work.file_id[at], work.lane[at], work.offset[at]
    end = begin + work.length[at]
    goes_on = (file_id[1:] == file_id[:-1]) & (lane[1:] == lane[:-1]) & (begin[1:] == end[:-1])
    piece = np.concatenate(([0], np.cumsum(~goes_on)))
    stream[at] = _joined(piece, at, file_id, begin, end)[piece]
    return stream


def _joined(piece: np.ndarray, at: np.ndarray, file_id: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The stream of each piece. A piece continues an earlier one of its file that ended at its first byte."""
    first = np.flatnonzero(np.diff(piece, prepend=-1))
    last = np.append(first[1:], len(piece)) - 1
    stream = np.arange(len(first))
    ended: dict[tuple[int, int], list[int]] = {}
    columns = (file_id[first], begin[first], end[last], at[first], at[last])
    pieces = list(zip(*(column.tolist() for column in columns), strict=True))
    for number in np.argsort(at[first], kind="stable").tolist():
        name, begins, ends, begins_at, _ = pieces[number]
        waiting = ended.get((name, begins), [])
        for place, earlier in enumerate(waiting):
            if pieces[earlier][4] < begins_at:
                stream[number] = stream[earlier]
                del waiting[place]
                break
        ended.setdefault((name, ends), []).append(number)
    return stream
