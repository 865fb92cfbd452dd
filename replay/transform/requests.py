"""Changes the requests of a rank: chunks of HDF5 data, compression, transfer size. Pure.

`transformed` rows read the same bytes. `modelled` ones do not: places of new chunks are made up, with the records in a
row, and real data shrink by one ratio only on average.
"""

from __future__ import annotations

import numpy as np

from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.transform.changes import Changes, Compression
from dxt_replay.replay.transform.rank_state import MODELLED, TRANSFORMED, Work, data_reads, exchanged, rows_of
from dxt_replay.replay.transform.read_data import DataSet, RequestCost
from dxt_replay.traces.units import NS_PER_S

NO_STREAM = -1

IN_ORDER_SHARE = 0.5
"""Share of the ranges that begin where the one before ended, from which on a program reads in order."""

JUMPS_SHARE = 0.95
"""Share of the records at whose begin the address jumps, from which on these are the records."""


def with_requests(work: Work, changes: Changes, data: DataSet) -> Work:
    """The operations with the changes of the requests, in their order."""
    if changes.chunk_bytes is not None:
        for file_id, recorded_bytes in data.chunk_bytes.items():
            work = with_chunks(work, file_id, recorded_bytes, changes.chunk_bytes, data.cost)
    if changes.compression is not None:
        # In an HDF5 file, requests of this length or more are chunks, shorter ones metadata.
        least = np.zeros(len(data.files), dtype=np.int64)
        for file_id, recorded_bytes in data.chunk_bytes.items():
            least[file_id] = changes.chunk_bytes or recorded_bytes
        mine = data.files[work["file_id"]] & (work["length"] >= least[work["file_id"]])
        work, decode_ns = with_compression(work, mine, changes.compression, data.cost)
        work = work | {"busy_ns": work["busy_ns"] + decode_ns}
        # A stream of one request size keeps that size, with fewer requests.
        streamed = np.where(data.streams, data.request_bytes, 0)
        for size in np.unique(streamed[streamed > 0]).tolist():
            work = with_transfer_size(work, streamed[work["file_id"]] == size, size, data.cost)
    if changes.transfer_bytes is not None:
        work = with_transfer_size(work, data.streams[work["file_id"]], changes.transfer_bytes, data.cost)
    return work


def with_chunks(work: Work, file_id: int, recorded_bytes: int, chunk_bytes: int, cost: RequestCost) -> Work:
    """The operations, with the requests for whole chunks of a file (`recorded_bytes`) tiled in chunks of
    `chunk_bytes`: the same elements, tiled differently.

    The chunks of one record form a *range*. Each range is tiled anew from its begin, and one request reads one chunk,
    or the range if that is smaller. In random order a chunk that is larger than the range is read whole. Reads of
    headers and indexes stay.
    """
    at = np.flatnonzero(data_reads(work) & (work["file_id"] == file_id) & (work["length"] == recorded_bytes))
    if not len(at) or chunk_bytes == recorded_bytes:
        return work
    at = at[np.argsort(work["lane"][at], kind="stable")]
    offset, lane = work["offset"][at], work["lane"][at]
    new_batch = (np.diff(lane, prepend=-1) != 0) | (np.diff(work["need"][at], prepend=-2) != 0)
    starts = np.flatnonzero(new_batch)
    within = np.arange(len(at)) - starts[np.cumsum(new_batch) - 1]
    jumps = np.diff(offset, prepend=offset[0] - 2 * recorded_bytes) != recorded_bytes
    begins_range = within % _record_requests(within, jumps, np.diff(np.append(starts, len(at)))) == 0
    range_of, first = np.cumsum(begins_range) - 1, np.flatnonzero(begins_range)
    requests = np.bincount(range_of)
    # Bytes of the data, the records in a row.
    begin = _places(offset[first], requests * recorded_bytes)
    end = begin + requests * recorded_bytes
    in_order = (begin[1:] == end[:-1]) & (np.diff(lane[first]) == 0)
    whole = end - begin < chunk_bytes
    if len(begin) < 2 or in_order.mean() >= IN_ORDER_SHARE:
        whole = np.zeros_like(whole)
    # A range of several chunks begins with a chunk. A range smaller than a chunk is a piece of it.
    base = np.where(whole, begin // chunk_bytes * chunk_bytes, begin)
    count = -(-(end - base) // chunk_bytes)
    of_range = np.repeat(np.arange(len(base)), count)
    nth = np.arange(len(of_range)) - np.repeat(np.cumsum(count) - count, count)
    from_byte = base[of_range] + nth * chunk_bytes
    to_byte = np.minimum(from_byte + chunk_bytes, np.where(whole[of_range], end.max(), end[of_range]))
    of_bytes = np.bincount(range_of, weights=cost.of_bytes(work["duration_ns"][at])) / (end - begin)
    think = np.bincount(range_of, weights=work["think_ns"][at])
    later = (think - work["think_ns"][at[first]]) / np.maximum(requests - 1, 1)
    place = at[first][of_range]
    made = rows_of(work, place)
    made |= {
        "offset": int(offset.min()) + from_byte,
        "length": to_byte - from_byte,
        "origin": np.full(len(place), MODELLED, dtype=made["origin"].dtype),
        "duration_ns": np.rint(cost.latency_ns + of_bytes[of_range] * (to_byte - from_byte)).astype(np.int64),
        "think_ns": np.where(nth == 0, made["think_ns"], np.rint(later[of_range])).astype(np.int64),
    }
    return exchanged(work, at, made, place, nth)[0]


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


def with_compression(
    work: Work, chosen: np.ndarray, compression: Compression, cost: RequestCost
) -> tuple[Work, np.ndarray]:
    """The operations, with the reads `chosen` (bool) compressed; and int64 (n,), the time to decode each."""
    mine = chosen & data_reads(work)
    begin = np.rint(work["offset"] * compression.ratio).astype(np.int64)
    end = np.maximum(np.rint((work["offset"] + work["length"]) * compression.ratio).astype(np.int64), begin + 1)
    duration_ns = work["duration_ns"]
    lasts = np.rint(np.minimum(duration_ns, cost.latency_ns) + cost.of_bytes(duration_ns) * compression.ratio)
    decode = np.rint(np.where(mine, work["length"], 0) / compression.bytes_per_s * NS_PER_S).astype(np.int64)
    changed = work | {
        "offset": np.where(mine, begin, work["offset"]),
        "length": np.where(mine, end - begin, work["length"]),
        "duration_ns": np.where(mine, lasts, duration_ns).astype(np.int64),
        "origin": np.where(mine, MODELLED, work["origin"]).astype(work["origin"].dtype),
    }
    return changed, decode


def with_transfer_size(work: Work, chosen: np.ndarray, transfer_bytes: int, cost: RequestCost) -> Work:
    """The operations, with the reads `chosen` (bool) merged or split into requests of `transfer_bytes`.

    Requests end at multiples of `transfer_bytes` and at the end of a stream. A request takes the place of the first
    read with bytes of it, and the earliest event that needed one of its reads needs it. It is `transformed` unless the
    capture has the same read.
    """
    stream = streams_of(work, chosen & data_reads(work))
    at = np.flatnonzero(stream != NO_STREAM)
    if not len(at):
        return work
    at = at[np.lexsort((at, stream[at]))]
    # The reads, cut at multiples of the size: the read of each piece, and the piece's bytes.
    offset, until = work["offset"][at], work["offset"][at] + work["length"][at]
    count = (until - 1) // transfer_bytes - offset // transfer_bytes + 1
    read = np.repeat(np.arange(len(at)), count)
    nth = np.arange(len(read)) - np.repeat(np.cumsum(count) - count, count)
    border = (offset[read] // transfer_bytes + nth) * transfer_bytes
    piece_begin, piece_end = np.maximum(border, offset[read]), np.minimum(border + transfer_bytes, until[read])
    source = at[read]
    new = (np.diff(stream[source], prepend=-1) != 0) | (np.diff(piece_begin // transfer_bytes, prepend=-1) != 0)
    request, first = np.cumsum(new) - 1, np.flatnonzero(new)
    begin, end = piece_begin[first], piece_end[np.append(first[1:], len(new)) - 1]
    share = (piece_end - piece_begin) / work["length"][source]
    of_bytes = np.bincount(request, weights=share * cost.of_bytes(work["duration_ns"][source]))
    busy = np.bincount(request, weights=share * work["busy_ns"][source])
    never, need = np.iinfo(np.int64).max, work["need"][source]
    need = np.minimum.reduceat(np.where(need == NO_EVENT, never, need), first)
    made = rows_of(work, source[first])
    same = (begin == made["offset"]) & (end - begin == made["length"])
    made |= {
        "offset": begin,
        "length": end - begin,
        "need": np.where(need == never, NO_EVENT, need),
        "think_ns": np.where(nth[first] == 0, made["think_ns"], 0),
        "duration_ns": np.where(same, made["duration_ns"], np.rint(cost.latency_ns + of_bytes)).astype(np.int64),
        "busy_ns": np.where(same, made["busy_ns"], np.rint(busy)).astype(np.int64),
        "origin": np.where(same, made["origin"], TRANSFORMED).astype(made["origin"].dtype),
    }
    result, place = exchanged(work, at, made, source[first], begin)
    # Think time of reads that are merged into others goes to the lane's next operation, unless the read was held back.
    lost = source[(nth == 0) & ~new]
    lost = np.sort(lost[(work["think_ns"][lost] > 0) & ~work["held"][lost]])
    added = np.zeros(len(place), dtype=np.int64)
    for lane in np.unique(work["lane"][lost]).tolist():
        mine, gone = np.flatnonzero(result["lane"] == lane), lost[work["lane"][lost] == lane]
        taker = np.searchsorted(place[mine], gone)
        kept = taker < len(mine)
        np.add.at(added, mine[taker[kept]], work["think_ns"][gone[kept]])
    return result | {"think_ns": result["think_ns"] + added}


def streams_of(work: Work, chosen: np.ndarray) -> np.ndarray:
    """int64 (n,): number of the stream that each operation belongs to, NO_STREAM outside of `chosen` (bool).

    A read continues a stream if it begins at the byte at which the stream's last read of the same lane and file ended.
    A stream may continue in another lane, because the buffer belongs to the open file, not to the thread.
    """
    stream = np.full(len(work["op"]), NO_STREAM, dtype=np.int64)
    at = np.flatnonzero(chosen)
    if not len(at):
        return stream
    at = at[np.lexsort((at, work["lane"][at], work["file_id"][at]))]
    file_id, lane, begin = work["file_id"][at], work["lane"][at], work["offset"][at]
    end = begin + work["length"][at]
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
