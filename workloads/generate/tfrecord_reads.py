"""Reads of tf.data over TFRecord files: several files in turn, record by record, and further files opened ahead. Pure.

Facts: TensorFlow's older parallel interleave (`num_parallel_reads` a number) keeps T files in turn and twice as many
opened ahead, each with two records in its buffer; a file is read in requests of the transfer size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.schema import READ
from dxt_replay.workloads.generate.assumed_device import AssumedDevice
from dxt_replay.workloads.generate.columns import Columns
from dxt_replay.workloads.generate.read_ahead import DataFiles, PieceOperations, Pieces, Preprocessing
from dxt_replay.workloads.generate.request_templates import CLOSE, NO_OFFSET, OPEN, numbered
from dxt_replay.workloads.generate.sample_order import Share

TRANSFER_BYTES = 1 << 18
"""TensorFlow's buffer for a TFRecord file without a transfer size."""

HEADER_BYTES = 12
"""Bytes of a record before its content: its length and a checksum of that. Without a buffer they are a request of their
own."""

RECORDS_AHEAD = 2
"""Records of a file that the interleave buffers: twice its block length of one record."""

SECOND_PASS_AHEAD = 3
"""Records that an open file has buffered when the iterator over a further pass is dropped."""

OPENED_AHEAD = 2
"""Files opened ahead, as a multiple of the files read in turn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Segments:
    """Parts of files that a rank reads one after the other, arrays (s,): file in reading order, first record, records,
    and the bytes of a record. base: int64 (groups + 1,), records before each group of files that are read in turn."""

    file: np.ndarray
    first: np.ndarray
    records: np.ndarray
    record_bytes: np.ndarray
    base: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Reads(Columns):
    """Operations of a rank in the order of its lanes' work, arrays (n,).

    segment: which part of a file it reads; those of further passes are numbered on. needed: whether the fetch waits.
    """

    segment: np.ndarray
    fetch: np.ndarray
    needed: np.ndarray
    follows: np.ndarray
    op: np.ndarray
    offset: np.ndarray
    length: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TfrecordReads:
    """Readers of TFRecord files (`PassReads`).

    transfer_bytes: of a request; 0: files are read without a buffer, a record's header and then its rest.
    in_turn: files read in turn (T). first_lane: of 3 T lanes, in which files follow each other.
    kept: a rank keeps one of `kept` records: the number of ranks if all of them read all files; else 1.
    shuffle: records that the shuffle buffer holds before the first batch leaves it; 1 without a shuffle.
    batches_ahead: batches in the parsing and in the prefetch buffer.
    by_file: whether rank r reads the files r, r + R ...; else the samples from r `per_rank` on, or all files.
    fetches: of the pass.
    again: records of each further pass that the buffers take in before the iterator is dropped at the end of the last
    fetch. That fetch takes their first batch if `fetches` exceeds the steps of the share.
    preprocessing: parsing time of samples; None for no time. parsers: batches that are parsed at once.
    """

    share: Share
    files: DataFiles
    device: AssumedDevice
    transfer_bytes: int
    in_turn: int
    first_lane: int
    kept: int
    shuffle: int
    batches_ahead: int
    by_file: bool
    fetches: int
    again: tuple[int, ...] = ()
    preprocessing: Preprocessing | None = None
    parsers: int = 1

    @property
    def lanes(self) -> int:
        """See PassReads."""
        return (1 + OPENED_AHEAD) * self.in_turn

    @property
    def _step_records(self) -> int:
        return self.share.batch * self.kept

    @property
    def _records_ahead(self) -> int:
        """Largest distance in records between a record that is read and those that the loop has fetched."""
        ahead = max(self.batches_ahead, 1) * self._step_records
        return RECORDS_AHEAD * self.in_turn + self.shuffle + ahead

    @property
    def depth(self) -> int:
        """See PassReads."""
        opened_ahead = OPENED_AHEAD * self.in_turn * self.share.samples_per_file
        return (self._records_ahead + opened_ahead) // self._step_records + 2

    @property
    def piece_count(self) -> int:
        """See PassReads."""
        return 2 * self.in_turn + 2 * (self._step_records // self.share.samples_per_file)

    @property
    def fetch_operations(self) -> int:
        """See PassReads."""
        records, per_file = self._step_records, self.share.samples_per_file
        moved = records * int(self.files.size.max(initial=0)) // per_file
        requests = moved // self.transfer_bytes if self.transfer_bytes else 2 * records
        return max(1, requests + 4 * (1 + records // per_file))

    def _requests(self, size: np.ndarray, record_bytes: np.ndarray) -> np.ndarray:
        """Number of requests for `size` bytes of records."""
        return -(-size // self.transfer_bytes) if self.transfer_bytes else 2 * (size // record_bytes)

    def _request_begin(self, number: np.ndarray, record_bytes: np.ndarray) -> np.ndarray:
        """Begin of a request, in bytes from the first one."""
        if self.transfer_bytes:
            return number * self.transfer_bytes
        return number // 2 * record_bytes + number % 2 * HEADER_BYTES

    def _segments(self, rank: int) -> _Segments:
        shared = self.share
        if self.by_file or self.kept > 1:
            file = np.arange(rank if self.by_file else 0, shared.files, shared.ranks if self.by_file else 1)
            first = np.zeros(len(file), dtype=np.int64)
            records = np.full(len(file), shared.samples_per_file)
        else:
            begin, end = rank * shared.per_rank, (rank + 1) * shared.per_rank
            file = np.arange(begin // shared.samples_per_file, -(-end // shared.samples_per_file))
            first = np.maximum(begin - file * shared.samples_per_file, 0)
            records = np.minimum(end - file * shared.samples_per_file, shared.samples_per_file) - first
        starts = np.arange(0, len(file), self.in_turn)
        sums = np.add.reduceat(records, starts) if len(file) else np.empty(0, dtype=np.int64)
        return _Segments(
            file=file,
            first=first,
            records=records,
            record_bytes=self.files.size[file] // shared.samples_per_file,
            base=np.concatenate(([0], np.cumsum(sums))),
        )

    def _position(self, segments: _Segments, segment: np.ndarray, record: np.ndarray) -> np.ndarray:
        """Index of records in the order in which the interleave yields them."""
        group = segment // self.in_turn
        position = segments.base[group]
        for slot in range(self.in_turn):
            other = group * self.in_turn + slot
            length = np.where(other < len(segments.records), segments.records[other % len(segments.records)], 0)
            position = position + np.minimum(length, record) + ((other < segment) & (length > record))
        return position

    def _reads(self, rank: int, first: int, last: int) -> _Reads:
        """The operations for the fetches first to last - 1, file by file."""
        parts = [self._first_pass(rank, first, last)]
        if last == self.fetches:
            parts += [self._further_pass(rank, number, taken) for number, taken in enumerate(self.again, start=1)]
        return _Reads.joined(parts)

    def _further_pass(self, rank: int, pass_number: int, again: int) -> _Reads:
        """Reads of a further pass, of `again` records, that begins at the end of this one and is closed with it."""
        segments, fetch = self._segments(rank), self.fetches - 1
        number = np.arange(len(segments.file))
        left = np.maximum(again - segments.base[number // self.in_turn], 0)
        taken = np.clip(-(-(left - number % self.in_turn) // self.in_turn), 0, segments.records)
        opened = number < self.lanes + np.count_nonzero(taken == segments.records)
        segment, taken = number[opened], taken[opened]
        records = np.minimum(taken + SECOND_PASS_AHEAD, segments.records[segment])
        whole = records == segments.records[segment]
        stop = records * segments.record_bytes[segment]
        counts = self._requests(stop, segments.record_bytes[segment])
        row, place = numbered(counts + 2 + whole)
        record_bytes = segments.record_bytes[segment[row]]
        at, until = (self._request_begin(each, record_bytes) for each in (place - 1, place))
        is_read = (place > 0) & (place <= counts[row])
        closes = place == counts[row] + 1 + whole[row]
        record = np.maximum(at, 0) // record_bytes
        position = self._position(segments, segment[row], np.minimum(record, segments.records[segment[row]] - 1))
        begin = pass_number * int(segments.base[-1])
        room = begin + np.where(record < RECORDS_AHEAD, np.minimum(position, 0), position) - self._records_ahead
        ended = np.minimum(room // self._step_records, fetch - 1)
        follows = np.where((room < 0) | (ended < 0), 0, 2 * ended + 1)
        takes_first = pass_number == 1 and self.fetches > self.share.steps
        size = self.files.size[segments.file[segment[row]]]
        return _Reads(
            segment=pass_number * len(segments.file) + segment[row],
            fetch=np.full(len(row), fetch),
            needed=(place <= counts[row]) & (position < self._step_records) & takes_first,
            follows=follows,
            op=np.select([place == 0, closes], [OPEN, CLOSE], READ).astype(np.int8),
            offset=np.where((place == 0) | closes, NO_OFFSET, np.minimum(at, size)),
            length=np.where(is_read, np.minimum(until, size) - at, 0),
        )

    def _first_pass(self, rank: int, first: int, last: int) -> _Reads:
        segments = self._segments(rank)
        begin, end = first * self._step_records, last * self._step_records + self.shuffle - 1
        groups = np.searchsorted(segments.base, (begin, end - 1), side="right") - 1
        chosen = np.arange(groups[0] * self.in_turn, min((groups[1] + 1) * self.in_turn, len(segments.file)))
        if not len(chosen):
            return _Reads(**{name: np.zeros(0, dtype=np.int64) for name in _Reads.__slots__})
        start = segments.first[chosen] * segments.record_bytes[chosen]
        stop = start + segments.records[chosen] * segments.record_bytes[chosen]
        whole = segments.first[chosen] + segments.records[chosen] == self.share.samples_per_file
        # The bytes of a file beyond its records are read with them.
        stop = np.where(whole, self.files.size[segments.file[chosen]], stop)
        counts = self._requests(stop - start, segments.record_bytes[chosen])
        # Each file is opened, read, read at its end, and closed.
        row, number = numbered(counts + 3)
        is_read = (number > 0) & (number <= counts[row])
        segment, extent = chosen[row], (stop - start)[row]
        record_bytes = segments.record_bytes[segment]
        at, until = (
            np.minimum(self._request_begin(each, record_bytes), extent) for each in (np.maximum(number - 1, 0), number)
        )
        record = np.minimum(at // record_bytes, segments.records[segment] - 1)
        position = self._position(segments, segment, record)
        fetch = np.maximum(position - self.shuffle + 1, 0) // self._step_records
        op = np.select([number == 0, number == counts[row] + 2], [OPEN, CLOSE], READ).astype(np.int8)
        offset = np.where(op == READ, start[row] + at, NO_OFFSET)
        length = np.where(is_read, until - at, 0)
        mine = (fetch >= first) & (fetch < last)
        mine &= whole[row] | (op != READ) | is_read  # only a reader that gets there meets the end
        return _Reads(
            segment=segment,
            fetch=fetch,
            needed=np.ones(len(fetch), dtype=bool),
            follows=self._follows(segments, segment, record, position),
            op=op,
            offset=offset,
            length=length,
        ).at(mine)

    def _follows(
        self, segments: _Segments, segment: np.ndarray, record: np.ndarray, position: np.ndarray
    ) -> np.ndarray:
        """The moment that lets each operation begin: its record has room in the buffers.

        The first records of a file wait only until the file is opened ahead."""
        opened = segments.base[np.maximum(segment // self.in_turn - OPENED_AHEAD, 0)]
        wanted = np.where(record < RECORDS_AHEAD, np.minimum(opened, position), position)
        room = wanted - self._records_ahead
        return np.where(room < 0, 0, 2 * (room // self._step_records) + 1)

    def _in_pieces(self, reads: _Reads, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Order of the operations by fetch, segment and moment, and the piece of each in that order."""
        order = np.lexsort((~reads.needed, reads.follows, reads.segment, reads.fetch))
        keys = np.stack([column[order] for column in (reads.fetch, reads.segment, reads.follows, reads.needed)])
        borders = np.any(np.diff(keys, axis=1) != 0, axis=0)
        return order, np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(borders)))[: len(order)]

    def pieces(self, ranks: np.ndarray, first: int, last: int) -> Pieces:
        """See PassReads."""
        parts = [self._pieces_of(int(rank), row, first, last) for row, rank in enumerate(ranks)]
        found = Pieces.joined(parts)
        return found.at(np.lexsort((found.row, found.turn, found.fetch)))

    def _pieces_of(self, rank: int, row: int, first: int, last: int) -> Pieces:
        reads = self._reads(rank, first, last)
        order, piece = self._in_pieces(reads, first)
        count = int(piece[-1]) + 1 if len(piece) else 0
        busy = np.zeros(count, dtype=np.int64)
        np.add.at(busy, piece, self.device.durations_ns(reads.op, reads.length)[order])
        begins = order[np.searchsorted(piece, np.arange(count))]
        fetch = reads.fetch[begins]
        return Pieces(
            row=np.full(count, row),
            fetch=fetch,
            turn=np.arange(count) - np.searchsorted(fetch, fetch, side="left"),
            lane=self._lane(reads.segment[begins]),
            follows=reads.follows[begins],
            busy_ns=busy + self._parsing_ns(rank, fetch, first, last),
            needed=reads.needed[begins],
        )

    def _parsing_ns(self, rank: int, fetch: np.ndarray, first: int, last: int) -> np.ndarray:
        """Time from each piece until the batch is ready; only the last piece of a fetch has any."""
        parsing = np.zeros(len(fetch), dtype=np.int64)
        if self.preprocessing is None:
            return parsing
        batch = self.share.batch
        sums = self.preprocessing(rank, first * batch, last * batch).reshape(-1, batch).sum(axis=1) // self.parsers
        is_last = np.diff(fetch, append=-1) != 0
        parsing[is_last] = sums[fetch[is_last] - first]
        return parsing

    def _lane(self, segment: np.ndarray) -> np.ndarray:
        return self.first_lane + segment % self.lanes

    def operations(self, rank: int, first: int, last: int) -> PieceOperations:
        """See PassReads."""
        segments, reads = self._segments(rank), self._reads(rank, first, last)
        order, piece = self._in_pieces(reads, first)
        nothing, ready = np.zeros(len(order), dtype=np.int64), np.zeros(len(order), dtype=np.int64)
        ends = np.flatnonzero(np.diff(piece, append=-1))
        ready[ends] = self._parsing_ns(rank, reads.fetch[order][ends], first, last)
        return PieceOperations(
            piece=piece,
            op=reads.op[order],
            file_id=self.files.file_id[segments.file[reads.segment[order] % len(segments.file)]],
            offset=reads.offset[order],
            length=reads.length[order],
            before_ns=nothing,
            ready_ns=ready,
        )

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """See PassReads."""
        if not self.files.uniform or self.preprocessing is not None:
            return ranks
        if self.kept > 1:
            return np.zeros(len(ranks), dtype=np.int64)
        shared = self.share
        if self.by_file:
            return -(-(shared.files - ranks) // shared.ranks)
        return ranks * shared.per_rank % shared.samples_per_file
