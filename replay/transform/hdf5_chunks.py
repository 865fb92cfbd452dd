"""Changes the chunk size of HDF5 data: the same elements, tiled differently. Pure.

The data requests of a file are those for whole chunks. The chunks of one record form a *range*. Each range is tiled
anew from its begin, and one request reads one chunk, or the range if that is smaller. In random order a chunk that is
larger than the range is read whole. Reads of headers and indexes stay. The places of the new chunks are made up, with
the records in a row, so the rows are `modelled`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.transform.rank_work import MODELLED, RankWork, exchanged
from dxt_replay.replay.transform.read_data import RequestCost

IN_ORDER_SHARE = 0.5
"""Share of the ranges that begin where the one before ended, from which on a program reads in order."""

JUMPS_SHARE = 0.95
"""Share of the records at whose begin the address jumps, from which on these are the records."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ranges:
    """The requested records: r ranges of the data, made of m chunk requests.

    of_request: int64 (m,), the range of each request. begin, end: int64 (r,), bytes of the data, records in a row.
    first: (r,), index of the first request of each. address: file offset of logical byte 0.
    """

    of_request: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    first: np.ndarray
    address: int


def with_chunks(work: RankWork, file_id: int, recorded_bytes: int, chunk_bytes: int, cost: RequestCost) -> RankWork:
    """The operations, with the requests for whole chunks of a file (`recorded_bytes`) tiled in chunks of
    `chunk_bytes`."""
    at = np.flatnonzero(work.data_reads & (work.file_id == file_id) & (work.length == recorded_bytes))
    if not len(at) or chunk_bytes == recorded_bytes:
        return work
    at = at[np.argsort(work.lane[at], kind="stable")]
    ranges = _ranges(work, at)
    of_range, begin, end = _tiles(ranges, work.lane[at], chunk_bytes)
    nth = np.arange(len(of_range)) - np.searchsorted(of_range, of_range)
    requests, first = np.bincount(ranges.of_request), at[ranges.first][of_range]
    moved = ranges.end - ranges.begin
    of_bytes = np.bincount(ranges.of_request, weights=cost.of_bytes(work.duration_ns[at])) / moved
    think = np.bincount(ranges.of_request, weights=work.think_ns[at])
    later = (think - work.think_ns[at[ranges.first]]) / np.maximum(requests - 1, 1)
    made = work.rows(first)
    made = dataclasses.replace(
        made,
        offset=ranges.address + begin,
        length=end - begin,
        origin=np.full(len(first), MODELLED, dtype=made.origin.dtype),
        duration_ns=np.rint(cost.latency_ns + of_bytes[of_range] * (end - begin)).astype(np.int64),
        think_ns=np.where(nth == 0, made.think_ns, np.rint(later[of_range])).astype(np.int64),
    )
    return exchanged(work, at, made, first, nth)[0]


def _ranges(work: RankWork, at: np.ndarray) -> _Ranges:
    """The ranges of the chunk requests `at`, which come lane after lane."""
    offset, chunk = work.offset[at], int(work.length[at[0]])
    new_batch = (np.diff(work.lane[at], prepend=-1) != 0) | (np.diff(work.feeds[at], prepend=-2) != 0)
    starts = np.flatnonzero(new_batch)
    within = np.arange(len(at)) - starts[np.cumsum(new_batch) - 1]
    jumps = np.diff(offset, prepend=offset[0] - 2 * chunk) != chunk
    period = _record_requests(within, jumps, np.diff(np.append(starts, len(at))))
    of_request = np.cumsum(within % period == 0) - 1
    first = np.flatnonzero(np.diff(of_request, prepend=-1))
    length = np.bincount(of_request) * chunk
    begin = _places(offset[first], length)
    return _Ranges(of_request=of_request, begin=begin, end=begin + length, first=first, address=int(offset.min()))


def _record_requests(within: np.ndarray, jumps: np.ndarray, batches: np.ndarray) -> int:
    """Number of chunk requests of a record: the smallest divisor of a batch's requests at whose multiples the addresses
    nearly always jump; the whole batch if they never do. `within`: number of the request in its batch."""
    usual = int(np.bincount(batches).argmax())
    for period in range(1, usual):
        if usual % period == 0 and jumps[within % period == 0].mean() >= JUMPS_SHARE:
            return period
    return usual


def _places(address: np.ndarray, length: np.ndarray) -> np.ndarray:
    """int64 (r,): the place of each range among the data, in the order of addresses and without gaps."""
    distinct, inverse = np.unique(address, return_inverse=True)
    longest = np.zeros(len(distinct), dtype=np.int64)
    np.maximum.at(longest, inverse, length)
    begin: np.ndarray = (np.cumsum(longest) - longest)[inverse]
    return begin


def _tiles(ranges: _Ranges, lane: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The range of each new request, and the logical bytes that it reads; all int64, in the order of the ranges."""
    whole = np.zeros(len(ranges.begin), dtype=bool)
    if not _in_order(ranges, lane):
        whole = ranges.end - ranges.begin < size
    # A range of several chunks begins with a chunk. A range smaller than a chunk is a piece of it.
    base = np.where(whole, ranges.begin // size * size, ranges.begin)
    count = -(-(ranges.end - base) // size)
    of_range = np.repeat(np.arange(len(base)), count)
    nth = np.arange(len(of_range)) - np.repeat(np.cumsum(count) - count, count)
    begin = base[of_range] + nth * size
    last = np.where(whole[of_range], ranges.end.max(), ranges.end[of_range])
    return of_range, begin, np.minimum(begin + size, last)


def _in_order(ranges: _Ranges, lane: np.ndarray) -> bool:
    """Whether ranges are read one behind the other in the file."""
    if len(ranges.begin) < 2:
        return True
    follows = (ranges.begin[1:] == ranges.end[:-1]) & (np.diff(lane[ranges.first]) == 0)
    return bool(follows.mean() >= IN_ORDER_SHARE)
