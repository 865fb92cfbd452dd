"""Changes the requests of a rank: chunks of HDF5 data, compression, transfer size; and describes the data set that a
capture reads.

`transformed` rows read the same bytes. `modelled` ones do not: places of new chunks are made up, with the records in a
row, and real data shrink by one ratio only on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.plan.layers import LayerChoice
from dxt_replay.replay.transform.changes import Changes, Compression
from dxt_replay.replay.transform.rank import MODELLED, TRANSFORMED, Work, data_reads, joined, rows_of
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import FORMATS, OPS, READ, WRITE, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_count

MODAL_SHARE = 0.9  # Share of a file's bytes that requests of one length must move, for that to be its request size
IN_ORDER_SHARE = 0.5  # Share of the ranges that begin where the one before ended, from which on reads are in order
JUMPS_SHARE = 0.95  # Share of the records at whose begin the address jumps, from which on these are the records
BYTES_PER_OPERATION = 300
"""Memory for each operation while all are changed and scheduled: about what docs/scale.md has as measured, half as much
again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """The cost of a read, from the recorded reads of the same capture: latency + bytes / bandwidth.

    A changed request keeps the recorded time of its bytes, plus one latency. So an unchanged request keeps its cost, a
    merged request saves latencies, and a slow byte stays slow. requests: how many are in the fit."""

    latency_ns: float
    ns_per_byte: float
    requests: int

    @classmethod
    def fitted(cls, sums: np.ndarray, shortest_ns: float) -> RequestCost:
        """The least-squares line, of which neither part is negative. `sums`: of 1, bytes, their squares, ns, and
        products of both. Requests of a single length cannot separate the two: then the shortest is the latency."""
        count, sum_x, sum_xx, sum_y, sum_xy = sums.tolist()
        latency = slope = 0.0
        spread = sum_xx - sum_x * sum_x / count if count else 0.0
        if count and spread <= 1e-9 * max(sum_xx, 1.0):
            latency = shortest_ns if sum_x else sum_y / count
            slope = max((sum_y - count * latency) / sum_x, 0.0) if sum_x else 0.0
        elif count:
            slope = (sum_xy - sum_x * sum_y / count) / spread
            latency = (sum_y - slope * sum_x) / count
            if slope < 0:
                slope, latency = 0.0, sum_y / count
            elif latency < 0:
                slope, latency = sum_xy / sum_xx, 0.0
        return cls(latency_ns=latency, ns_per_byte=slope, requests=int(count))

    def of_bytes(self, duration_ns: np.ndarray) -> np.ndarray:
        """float64 (n,): time of the bytes of recorded requests, ns, without the latency."""
        beyond: np.ndarray = np.maximum(duration_ns - self.latency_ns, 0.0)
        return beyond


_LENGTHS = pa.schema([("file", pa.int32()), ("length", pa.int64()), ("bytes", pa.int64())])


def _summed(lengths: pa.Table) -> pa.Table:
    return lengths.group_by(["file", "length"]).aggregate([("bytes", "sum")]).rename_columns(_LENGTHS.names)


class DataSet(NamedTuple):
    """The files that a job reads and does not write; arrays by file id.

    files, streams, hdf5: bool, all of them, those that are read as streams, to which a transfer size applies, and those
    of HDF5. read_bytes: int64.
    request_bytes: int64, length of the requests that move nearly all bytes of a file, or of its HDF5 chunks; 0 where
    there is no such length.
    chunk_bytes: file id -> bytes of a chunk, for files that are read in HDF5 chunks of one length."""

    files: np.ndarray
    streams: np.ndarray
    hdf5: np.ndarray
    read_bytes: np.ndarray
    request_bytes: np.ndarray
    chunk_bytes: dict[int, int]
    cost: RequestCost


def data_set_of(capture: Capture, layers: LayerChoice) -> DataSet:
    """Derive the data set from one pass over the operations. Raises: CaptureError when a part is damaged."""
    files = capture.files.num_rows
    written, moved, request = np.zeros(files, dtype=bool), *np.zeros((2, files), dtype=np.int64)
    sums, shortest_ns, pairs = np.zeros(5), math.inf, [_LENGTHS.empty_table()]
    columns = ["op", "api", "file_id", "offset", "length", "origin", "start_ns", "end_ns"]
    for batch in capture.operations(columns=columns):
        op, file_id, length = codes(batch, "op"), batch.column("file_id").to_numpy(), batch.column("length").to_numpy()
        written[file_id[np.isin(op, (WRITE, OPS.index("rename")))]] = True
        reads = layers.replayed(batch) & (op == READ)
        x = length[reads].astype(np.float64)
        y = (batch.column("end_ns").to_numpy() - batch.column("start_ns").to_numpy())[reads].astype(np.float64)
        sums += (len(x), x.sum(), (x * x).sum(), y.sum(), (x * y).sum())
        shortest_ns = min(shortest_ns, float(y.min(initial=math.inf)))
        mine = reads & (length > 0)
        pairs.append(_summed(pa.table([file_id[mine], length[mine], length[mine]], schema=_LENGTHS)))
    summed = _summed(pa.concat_tables(pairs))
    file_id, length, of_length = (summed[name].to_numpy() for name in _LENGTHS.names)
    np.add.at(moved, file_id, of_length)
    # Sizes of the uncompressed chunks, if the source knows its HDF5 data sets, go before the length of most bytes.
    chunks = {
        (row["file_id"], math.prod(row["chunk_shape"]) * row["type_size"])
        for row in capture.hdf5.to_pylist()
        if row["chunk_shape"] and not row["filters"]
    }
    known = np.array([each in chunks for each in zip(file_id.tolist(), length.tolist(), strict=True)], dtype=bool)
    order = np.lexsort((of_length, known, file_id))
    last = order[np.diff(file_id[order], append=-1) != 0]
    usual = known[last] | (of_length[last] >= MODAL_SHARE * moved[file_id[last]])
    request[file_id[last]] = np.where(usual, length[last], 0)
    hdf5, mine = codes(capture.files, "format") == FORMATS.index("hdf5"), (moved > 0) & ~written
    chunk_bytes = {name: int(request[name]) for name in np.flatnonzero(mine & hdf5 & (request > 0)).tolist()}
    return DataSet(mine, mine & ~hdf5, hdf5, moved, request, chunk_bytes, RequestCost.fitted(sums, shortest_ns))


def check_requests(capture: Capture, changes: Changes, data: DataSet, available: int | None) -> None:
    """Raises: UsageError if a change of the requests has no meaning for the capture, or if the operations need more
    than the bytes `available`; None: not known."""
    hdf5, streams, some = data.files & data.hdf5, data.streams, data.read_bytes > 0
    if changes.compression is not None:
        earlier = [each["changes"] for each in capture.info.made_by.get("transforms", [])]
        filters = {name for row in capture.hdf5.to_pylist() if hdf5[row["file_id"]] for name in row["filters"] or ()}
        if any("compression" in each for each in earlier) or filters:
            by = f"by {', '.join(sorted(filters))}" if filters else "by an earlier transform"
            raise UsageError(f"--compression: the data of {capture.named} are compressed already, {by}")
    if changes.transfer_bytes is not None and not (streams & some).any():
        chunks = " The requests of HDF5 data have the size of its chunks: use --chunk." if data.hdf5.any() else ""
        raise UsageError(f"--transfer-size changes reads of streams, and this capture has none.{chunks}")
    if changes.chunk_bytes is not None and not (hdf5 & some).any():
        raise UsageError(
            "--chunk changes the chunks of HDF5 data, and this capture reads no HDF5 file: for a stream of other "
            "data use --transfer-size"
        )
    if changes.chunk_bytes is not None and not data.chunk_bytes:
        largest = capture.paths()[int(np.where(hdf5, data.read_bytes, 0).argmax())]
        raise UsageError(
            f"--chunk: the reads of {largest} have many lengths, so its chunks are not known: they are compressed, or "
            "the data set is contiguous"
        )
    operations = capture.operation_count()
    for size, mine in ((changes.transfer_bytes, streams), (changes.chunk_bytes, list(data.chunk_bytes))):
        operations += 0 if size is None else int(data.read_bytes[mine].sum()) // size
    needed = operations * BYTES_PER_OPERATION
    if available is not None and needed > available:
        raise UsageError(
            f"a transformation holds all operations in memory: some {format_bytes(needed)} for the "
            f"{format_count(operations)} operations of {capture.named}, and {format_bytes(available)} are available. "
            "Use a machine with more memory, or change fewer ranks or steps with dxt_replay.part"
        )


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
        work = with_compression(work, mine, changes.compression, data.cost)
        # A stream of one request size keeps that size, with fewer requests.
        streamed = np.where(data.streams, data.request_bytes, 0)
        for size in np.unique(streamed[streamed > 0]).tolist():
            work = with_transfer_size(work, streamed[work["file_id"]] == size, size, data.cost)
    if changes.transfer_bytes is not None:
        work = with_transfer_size(work, data.streams[work["file_id"]], changes.transfer_bytes, data.cost)
    return work


def _exchanged(work: Work, gone: np.ndarray, made: Work, place: np.ndarray, nth: np.ndarray) -> tuple[Work, np.ndarray]:
    """Replace the operations at the indices `gone` by `made`. Returns the operations and the place of each.

    place: int64, index of the operation in `work` whose place each of `made` takes. nth: its order at that place."""
    stay = np.delete(np.arange(len(work["op"])), gone)
    places = np.concatenate((stay, place))
    order = np.lexsort((np.concatenate((np.zeros(len(stay), dtype=np.int64), nth)), places))
    return rows_of(joined([rows_of(work, stay), made]), order), places[order]


def _pieces(begin: np.ndarray, end: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ranges cut into pieces of `size` bytes: the range of each piece, its number in it, and its first byte."""
    count = -(-(end - begin) // size)
    of_range = np.repeat(np.arange(len(begin)), count)
    nth = np.arange(len(of_range)) - np.repeat(np.cumsum(count) - count, count)
    return of_range, nth, begin[of_range] + nth * size


def with_chunks(work: Work, file_id: int, recorded_bytes: int, chunk_bytes: int, cost: RequestCost) -> Work:
    """The operations, with the requests for whole chunks of a file (`recorded_bytes`) tiled in chunks of
    `chunk_bytes`: the same elements, tiled differently.

    The chunks of one record form a *range*. Each range is tiled anew from its begin, and one request reads one chunk,
    or the range if that is smaller. In random order a chunk that is larger than the range is read whole. Reads of
    headers and indexes stay."""
    at = np.flatnonzero(data_reads(work) & (work["file_id"] == file_id) & (work["length"] == recorded_bytes))
    if not len(at) or chunk_bytes == recorded_bytes:
        return work
    at = at[np.argsort(work["lane"][at], kind="stable")]
    offset, lane = work["offset"][at], work["lane"][at]
    new_batch = (np.diff(lane, prepend=-1) != 0) | (np.diff(work["need"][at], prepend=-2) != 0)
    starts = np.flatnonzero(new_batch)
    within = np.arange(len(at)) - starts[np.cumsum(new_batch) - 1]
    jumps = np.diff(offset, prepend=offset[0] - 2 * recorded_bytes) != recorded_bytes
    # A record has as many requests as the smallest divisor of a batch's requests at whose multiples the addresses
    # nearly always jump; if they never do, it is the whole batch.
    usual = int(np.bincount(np.diff(np.append(starts, len(at)))).argmax())
    periods = (each for each in range(1, usual) if usual % each == 0)
    period = next((each for each in periods if jumps[within % each == 0].mean() >= JUMPS_SHARE), usual)
    begins_range = within % period == 0
    range_of, first = np.cumsum(begins_range) - 1, np.flatnonzero(begins_range)
    requests = np.bincount(range_of)
    # Bytes of the data, the records in a row: in the order of their addresses and without gaps.
    distinct, inverse = np.unique(offset[first], return_inverse=True)
    longest = np.zeros(len(distinct), dtype=np.int64)
    np.maximum.at(longest, inverse, requests * recorded_bytes)
    begin = (np.cumsum(longest) - longest)[inverse]
    end = begin + requests * recorded_bytes
    in_order = (begin[1:] == end[:-1]) & (np.diff(lane[first]) == 0)
    whole = end - begin < chunk_bytes
    if len(begin) < 2 or in_order.mean() >= IN_ORDER_SHARE:
        whole = np.zeros_like(whole)
    # A range of several chunks begins with a chunk. A range smaller than a chunk is a piece of it.
    base = np.where(whole, begin // chunk_bytes * chunk_bytes, begin)
    of_range, nth, from_byte = _pieces(base, end, chunk_bytes)
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
    return _exchanged(work, at, made, place, nth)[0]


def with_compression(work: Work, chosen: np.ndarray, compression: Compression, cost: RequestCost) -> Work:
    """The operations, with the reads `chosen` (bool) compressed, and busy times to decode them."""
    mine = chosen & data_reads(work)
    begin = np.rint(work["offset"] * compression.ratio).astype(np.int64)
    end = np.maximum(np.rint((work["offset"] + work["length"]) * compression.ratio).astype(np.int64), begin + 1)
    duration_ns = work["duration_ns"]
    lasts = np.rint(np.minimum(duration_ns, cost.latency_ns) + cost.of_bytes(duration_ns) * compression.ratio)
    decode_ns = np.rint(np.where(mine, work["length"], 0) / compression.bytes_per_s * NS_PER_S).astype(np.int64)
    return work | {
        "offset": np.where(mine, begin, work["offset"]),
        "length": np.where(mine, end - begin, work["length"]),
        "duration_ns": np.where(mine, lasts, duration_ns).astype(np.int64),
        "origin": np.where(mine, MODELLED, work["origin"]).astype(work["origin"].dtype),
        "busy_ns": work["busy_ns"] + decode_ns,
    }


def with_transfer_size(work: Work, chosen: np.ndarray, transfer_bytes: int, cost: RequestCost) -> Work:
    """The operations, with the reads `chosen` (bool) merged or split into requests of `transfer_bytes`.

    Requests end at multiples of `transfer_bytes` and at the end of a stream. A request takes the place of the first
    read with bytes of it, and the earliest event that needed one of its reads needs it. It is `transformed` unless the
    capture has the same read."""
    at = np.flatnonzero(chosen & data_reads(work))
    if not len(at):
        return work
    stream = _streams(work, at)
    order = np.lexsort((at, stream))
    at, stream = at[order], stream[order]
    # The reads, cut at multiples of the size: the read of each piece, and the piece's bytes.
    offset, until = work["offset"][at], work["offset"][at] + work["length"][at]
    read, nth, border = _pieces(offset // transfer_bytes * transfer_bytes, until, transfer_bytes)
    piece_begin, piece_end = np.maximum(border, offset[read]), np.minimum(border + transfer_bytes, until[read])
    source = at[read]
    new = (np.diff(stream[read], prepend=-1) != 0) | (np.diff(piece_begin // transfer_bytes, prepend=-1) != 0)
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
    result, place = _exchanged(work, at, made, source[first], begin)
    # Think time of reads that are merged into others goes to the lane's next operation, unless the read was held back.
    lost = source[(nth == 0) & ~new]
    lost = np.sort(lost[(work["think_ns"][lost] > 0) & ~work["held"][lost]])
    think = result["think_ns"].copy()
    for lane in np.unique(work["lane"][lost]).tolist():
        mine, gone = np.flatnonzero(result["lane"] == lane), lost[work["lane"][lost] == lane]
        taker = np.searchsorted(place[mine], gone)
        kept = taker < len(mine)
        np.add.at(think, mine[taker[kept]], work["think_ns"][gone[kept]])
    return result | {"think_ns": think}


def _streams(work: Work, reads: np.ndarray) -> np.ndarray:
    """int64 (n,): number of the stream that each of these reads, indices (n,), belongs to.

    A read continues a stream if it begins at the byte at which the stream's last read of the same lane and file ended.
    A stream may continue in another lane, because the buffer belongs to the open file, not to the thread."""
    order = np.lexsort((reads, work["lane"][reads], work["file_id"][reads]))
    at = reads[order]
    file_id, lane, begin = work["file_id"][at], work["lane"][at], work["offset"][at]
    end = begin + work["length"][at]
    goes_on = (file_id[1:] == file_id[:-1]) & (lane[1:] == lane[:-1]) & (begin[1:] == end[:-1])
    piece = np.concatenate(([0], np.cumsum(~goes_on)))
    # A piece continues the first earlier one of its file that ended at its first byte.
    first = np.flatnonzero(np.diff(piece, prepend=-1))
    last = np.append(first[1:], len(piece)) - 1
    of_piece = np.arange(len(first))
    ended: dict[tuple[int, int], list[int]] = {}
    columns = (file_id[first], begin[first], end[last], at[first])
    pieces, ends_at = list(zip(*(column.tolist() for column in columns), strict=True)), at[last].tolist()
    for number in np.argsort(at[first], kind="stable").tolist():
        name, begins, ends, begins_at = pieces[number]
        waiting = ended.get((name, begins), [])
        earlier = next((each for each in waiting if ends_at[each] < begins_at), None)
        if earlier is not None:
            of_piece[number] = of_piece[earlier]
            waiting.remove(earlier)
        ended.setdefault((name, ends), []).append(number)
    stream = np.empty(len(reads), dtype=np.int64)
    stream[order] = of_piece[piece]
    return stream
