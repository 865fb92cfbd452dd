"""Reads of tf.data over TFRecord files: several files in turn, record by record, and further files opened ahead. Pure.

Facts: TensorFlow's older parallel interleave (`num_parallel_reads` a number) keeps T files in turn and twice as many
opened ahead, each with two records in its buffer; a file is read in requests of the transfer size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.schema import READ
from dxt_replay.workloads.generate.clock import OPERATION, PIECE, AssumedDevice
from dxt_replay.workloads.generate.plan import Share
from dxt_replay.workloads.generate.requests import CLOSE, NO_OFFSET, OPEN, numbered, rows_of

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

_SEGMENT = np.dtype([(name, np.int64) for name in ("file", "first", "records", "record_bytes")])
"""A part of a file that a rank reads: the file in reading order, first record, records, and the bytes of a record."""

_READ = np.dtype(
    [(name, np.int64) for name in ("segment", "fetch", "follows", "op", "offset", "length")] + [("needed", np.bool_)]
)
"""An operation of a rank, in the order of its lanes' work. segment: which part of a file it reads; those of further
passes are numbered on. needed: whether the fetch waits."""


_Parts = tuple[np.ndarray, np.ndarray]
"""What a rank reads one after the other (_SEGMENT); and records before each group of files that are read in turn, with
all records last."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TfrecordReads:
    """Readers of TFRecord files (see `readers.py`).

    transfer_bytes: of a request; 0: files are read without a buffer, a record's header and then its rest.
    in_turn: files read in turn (T). first_lane: of 3 T lanes, in which files follow each other.
    kept: a rank keeps one of `kept` records: the number of ranks if all of them read all files; else 1.
    shuffle: records that the shuffle buffer holds before the first batch leaves it; 1 without a shuffle.
    batches_ahead: batches in the parsing and in the prefetch buffer.
    by_file: whether rank r reads the files r, r + R ...; else the samples from r `per_rank` on, or all files.
    fetches: of the pass.
    again: records of each further pass that the buffers take in before the iterator is dropped at the end of the last
    fetch. That fetch takes their first batch if `fetches` exceeds the steps of the share.
    preprocessing: (rank, first, last) -> ns that each sample is parsed; None for no time. parsers: batches that are
    parsed at once.
    """

    share: Share
    files: np.ndarray
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
    preprocessing: Callable[[int, int, int], np.ndarray] | None = None
    parsers: int = 1

    @property
    def _step_records(self) -> int:
        return self.share.batch * self.kept

    @property
    def _records_ahead(self) -> int:
        """Largest distance in records between a record that is read and those that the loop has fetched."""
        return RECORDS_AHEAD * self.in_turn + self.shuffle + max(self.batches_ahead, 1) * self._step_records

    @property
    def depth(self) -> int:
        """Largest number of fetches by which a piece is ahead of the loop."""
        opened_ahead = OPENED_AHEAD * self.in_turn * self.share.samples_per_file
        return (self._records_ahead + opened_ahead) // self._step_records + 2

    @property
    def piece_count(self) -> int:
        """About the number of pieces of a fetch."""
        return 2 * self.in_turn + 2 * (self._step_records // self.share.samples_per_file)

    @property
    def fetch_operations(self) -> int:
        """About the number of operations of a fetch."""
        records, per_file = self._step_records, self.share.samples_per_file
        moved = records * int(self.files["size"].max(initial=0)) // per_file
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

    def _segments(self, rank: int) -> _Parts:
        shared, per_file = self.share, self.share.samples_per_file
        begin, end = rank * shared.per_rank, (rank + 1) * shared.per_rank
        if self.by_file or self.kept > 1:
            file = np.arange(rank if self.by_file else 0, shared.files, shared.ranks if self.by_file else 1)
            begin, end = 0, shared.files * per_file
        else:
            file = np.arange(begin // per_file, -(-end // per_file))
        first = np.maximum(begin - file * per_file, 0)
        records = np.minimum(end - file * per_file, per_file) - first
        starts = np.arange(0, len(file), self.in_turn)
        sums = np.add.reduceat(records, starts) if len(file) else records
        record_bytes = self.files["size"][file] // per_file
        segments = rows_of(_SEGMENT, file=file, first=first, records=records, record_bytes=record_bytes)
        return segments, np.concatenate(([0], np.cumsum(sums)))

    def _position(self, parts: _Parts, segment: np.ndarray, record: np.ndarray) -> np.ndarray:
        """Index of records in the order in which the interleave yields them."""
        segments, base = parts
        records, group = segments["records"], segment // self.in_turn
        position = base[group]
        for slot in range(self.in_turn):
            other = group * self.in_turn + slot
            length = np.where(other < len(records), records[other % len(records)], 0)
            position = position + np.minimum(length, record) + ((other < segment) & (length > record))
        return position

    def _room(self, base: np.ndarray, segment: np.ndarray, position: np.ndarray, record: np.ndarray) -> np.ndarray:
        """Records that the loop must have taken before a record has room in the buffers; the first ones of a file wait
        only until the file is opened ahead."""
        opened = base[np.maximum(segment // self.in_turn - OPENED_AHEAD, 0)]
        wanted = np.where(record < RECORDS_AHEAD, np.minimum(opened, position), position)
        return wanted - self._records_ahead

    def _reads(self, rank: int, first: int, last: int) -> np.ndarray:
        """The operations (_READ) for the fetches first to last - 1, file by file."""
        parts = [self._first_pass(rank, first, last)]
        if last == self.fetches:
            parts += [self._further_pass(rank, number, taken) for number, taken in enumerate(self.again, start=1)]
        return np.concatenate(parts)

    def _first_pass(self, rank: int, first: int, last: int) -> np.ndarray:
        segments, base = self._segments(rank)
        begin, end = first * self._step_records, last * self._step_records + self.shuffle - 1
        groups = np.searchsorted(base, (begin, end - 1), side="right") - 1
        chosen = np.arange(groups[0] * self.in_turn, min((groups[1] + 1) * self.in_turn, len(segments)))
        if not len(chosen):
            return np.empty(0, dtype=_READ)
        mine = segments[chosen]
        start = mine["first"] * mine["record_bytes"]
        whole = mine["first"] + mine["records"] == self.share.samples_per_file
        # The bytes of a file beyond its records are read with them.
        of_file = self.files["size"][mine["file"]]
        extent = np.where(whole, of_file, start + mine["records"] * mine["record_bytes"]) - start
        counts = self._requests(extent, mine["record_bytes"])
        # Each file is opened, read, read at its end, and closed.
        row, number = numbered(counts + 3)
        is_read = (number > 0) & (number <= counts[row])
        segment, record_bytes = chosen[row], mine["record_bytes"][row]
        at, until = (
            np.minimum(self._request_begin(each, record_bytes), extent[row])
            for each in (np.maximum(number - 1, 0), number)
        )
        record = np.minimum(at // record_bytes, mine["records"][row] - 1)
        position = self._position((segments, base), segment, record)
        room = self._room(base, segment, position, record)
        fetch = np.maximum(position - self.shuffle + 1, 0) // self._step_records
        op = np.select([number == 0, number == counts[row] + 2], [OPEN, CLOSE], READ)
        found = rows_of(
            _READ,
            segment=segment,
            fetch=fetch,
            follows=np.where(room < 0, 0, 2 * (room // self._step_records) + 1),
            op=op,
            offset=np.where(op == READ, start[row] + at, NO_OFFSET),
            length=np.where(is_read, until - at, 0),
            needed=True,
        )
        # Only a reader that gets there meets the end of a file.
        return found[(fetch >= first) & (fetch < last) & (whole[row] | (op != READ) | is_read)]

    def _further_pass(self, rank: int, pass_number: int, again: int) -> np.ndarray:
        """Reads of a further pass, of `again` records, that begins at the end of this one and is closed with it."""
        segments, base = self._segments(rank)
        fetch, number = self.fetches - 1, np.arange(len(segments))
        left = np.maximum(again - base[number // self.in_turn], 0)
        taken = np.clip(-(-(left - number % self.in_turn) // self.in_turn), 0, segments["records"])
        opened = number < (1 + OPENED_AHEAD) * self.in_turn + np.count_nonzero(taken == segments["records"])
        mine, number, taken = segments[opened], number[opened], taken[opened]
        records = np.minimum(taken + SECOND_PASS_AHEAD, mine["records"])
        whole = records == mine["records"]
        counts = self._requests(records * mine["record_bytes"], mine["record_bytes"])
        row, place = numbered(counts + 2 + whole)
        record_bytes = mine["record_bytes"][row]
        at, until = (self._request_begin(each, record_bytes) for each in (place - 1, place))
        is_read = (place > 0) & (place <= counts[row])
        ends = (place == 0) | (place == counts[row] + 1 + whole[row])
        record = np.maximum(at, 0) // record_bytes
        position = self._position((segments, base), number[row], np.minimum(record, mine["records"][row] - 1))
        begin = pass_number * int(base[-1])
        room = begin + np.where(record < RECORDS_AHEAD, np.minimum(position, 0), position) - self._records_ahead
        ended = np.minimum(room // self._step_records, fetch - 1)
        takes_first = pass_number == 1 and self.fetches > self.share.steps
        size = self.files["size"][mine["file"][row]]
        return rows_of(
            _READ,
            segment=pass_number * len(segments) + number[row],
            fetch=fetch,
            follows=np.where((room < 0) | (ended < 0), 0, 2 * ended + 1),
            op=np.select([place == 0, ends], [OPEN, CLOSE], READ),
            offset=np.where(ends, NO_OFFSET, np.minimum(at, size)),
            length=np.where(is_read, np.minimum(until, size) - at, 0),
            needed=(place <= counts[row]) & (position < self._step_records) & takes_first,
        )

    def _in_pieces(self, rank: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """The operations by fetch, segment and moment, and the piece of each."""
        reads = self._reads(rank, first, last)
        reads = reads[np.lexsort((~reads["needed"], reads["follows"], reads["segment"], reads["fetch"]))]
        keys = np.stack([reads[name] for name in ("fetch", "segment", "follows", "needed")])
        borders = np.any(np.diff(keys, axis=1) != 0, axis=0)
        return reads, np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(borders)))[: len(reads)]

    def pieces(self, ranks: np.ndarray, first: int, last: int) -> np.ndarray:
        """The pieces (PIECE) of these ranks for the fetches [first, last)."""
        parts = [np.empty(0, dtype=PIECE)]
        for row, rank in enumerate(ranks.tolist()):
            reads, piece = self._in_pieces(rank, first, last)
            count = int(piece[-1]) + 1 if len(piece) else 0
            begins = reads[np.searchsorted(piece, np.arange(count))]
            busy, fetch = np.zeros(count, dtype=np.int64), begins["fetch"]
            np.add.at(busy, piece, self.device.durations_ns(reads["op"], reads["length"]))
            mine = rows_of(
                PIECE,
                row=np.full(count, row),
                fetch=fetch,
                turn=np.arange(count) - np.searchsorted(fetch, fetch, side="left"),
                lane=self.first_lane + begins["segment"] % ((1 + OPENED_AHEAD) * self.in_turn),
                follows=begins["follows"],
                busy_ns=busy + self._parsing_ns(rank, fetch, first, last),
                begin_ns=0,
                needed=begins["needed"],
            )
            parts.append(mine)
        found = np.concatenate(parts)
        return found[np.lexsort((found["row"], found["turn"], found["fetch"]))]

    def _parsing_ns(self, rank: int, fetch: np.ndarray, first: int, last: int) -> np.ndarray:
        """Time from each piece until the batch is ready; only the last piece of a fetch has any."""
        parsing, batch = np.zeros(len(fetch), dtype=np.int64), self.share.batch
        if self.preprocessing is not None:
            sums = self.preprocessing(rank, first * batch, last * batch).reshape(-1, batch).sum(axis=1) // self.parsers
            is_last = np.diff(fetch, append=-1) != 0
            parsing[is_last] = sums[fetch[is_last] - first]
        return parsing

    def operations(self, rank: int, first: int, last: int) -> np.ndarray:
        """The operations (OPERATION) of a rank for the fetches [first, last)."""
        segments, _ = self._segments(rank)
        reads, piece = self._in_pieces(rank, first, last)
        ready, ends = np.zeros(len(reads), dtype=np.int64), np.flatnonzero(np.diff(piece, append=-1))
        ready[ends] = self._parsing_ns(rank, reads["fetch"][ends], first, last)
        return rows_of(
            OPERATION,
            piece=piece,
            op=reads["op"],
            file_id=self.files["file_id"][segments["file"][reads["segment"] % max(len(segments), 1)]],
            offset=reads["offset"],
            length=reads["length"],
            before_ns=0,
            ready_ns=ready,
        )

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """int64 per rank: ranks with the same number have identical pieces."""
        shared = self.share
        if len(np.unique(self.files["size"])) > 1 or self.preprocessing is not None:
            return ranks
        if self.kept > 1:
            return np.zeros(len(ranks), dtype=np.int64)
        if self.by_file:
            return -(-(shared.files - ranks) // shared.ranks)
        return ranks * shared.per_rank % shared.samples_per_file
