"""Consecutive reads of a file as streams: the byte ranges that a program read from begin to end. Pure."""

from __future__ import annotations

import numpy as np

from dxt_replay.replay.transform.rank_work import RankWork

NO_STREAM = -1


def streams_of(work: RankWork, chosen: np.ndarray) -> np.ndarray:
    """int64 (n,): number of the stream that each operation belongs to, NO_STREAM outside of `chosen` (bool).

    A read continues a stream where it begins at the byte at which the stream's last read of the same lane and file
    ended. A stream that another lane goes on with is one: the buffer belongs to the open file, not to the thread.
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
    """The stream of each piece: pieces of a file are joined where one begins at the byte where an earlier one ended."""
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
