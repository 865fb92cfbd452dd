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

_READ = np.dtype(
    [(name, np.int64) for name in ("file", "turn", "fetch", "follows", "op", "offset", "length")]
    + [("needed", np.bool_)]
)
"""An operation of a rank, in the order of its lanes' work. file: in reading order. turn: number of the file among those
that the rank reads, further passes included. needed: whether the fetch waits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TfrecordReads:
    """Readers of TFRecord files (see `readers.py`).

    transfer_bytes: of a request; 0: files are read without a buffer, a record's header and then its rest.
    in_turn: files read in turn (T). first_lane: of 3 T lanes, in which files follow each other.
    shuffle: records that the shuffle buffer holds before the first batch leaves it; 1 without a shuffle.
    batches_ahead: batches in the parsing and in the prefetch buffer.
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
    shuffle: int
    batches_ahead: int
    fetches: int
    again: tuple[int, ...] = ()
    preprocessing: Callable[[int, int, int], np.ndarray] | None = None
    parsers: int = 1

    @property
    def kept(self) -> int:
        """A rank keeps one of so many records: rank r reads the files r, r + R ...; with fewer files than ranks all of
        them read all files, and keep one of R records."""
        return 1 if self.share.files >= self.share.ranks else self.share.ranks

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

    def _files(self, rank: int) -> np.ndarray:
        """The files that a rank reads, in their turns."""
        return np.arange(rank if self.kept == 1 else 0, self.share.files, self.share.ranks if self.kept == 1 else 1)

    def _position(self, files: np.ndarray, turn: np.ndarray, record: np.ndarray) -> np.ndarray:
        """Index of records of the files in these turns, in the order in which the interleave yields them."""
        before = turn // self.in_turn * self.in_turn
        return (
            before * self.share.samples_per_file
            + record * np.minimum(self.in_turn, len(files) - before)
            + turn
            - before
        )

    def _room(self, turn: np.ndarray, position: np.ndarray, record: np.ndarray) -> np.ndarray:
        """Records that the loop must have taken before a record has room in the buffers; the first ones of a file wait
        only until the file is opened ahead."""
        opened = np.maximum(turn // self.in_turn - OPENED_AHEAD, 0) * self.in_turn * self.share.samples_per_file
        wanted = np.where(record < RECORDS_AHEAD, np.minimum(opened, position), position)
        return wanted - self._records_ahead

    def _reads(self, rank: int, first: int, last: int) -> np.ndarray:
        """The operations (_READ) for the fetches first to last - 1, file by file."""
        parts = [self._first_pass(rank, first, last)]
        if last == self.fetches:
            parts += [self._further_pass(rank, number, taken) for number, taken in enumerate(self.again, start=1)]
        return np.concatenate(parts)

    def _first_pass(self, rank: int, first: int, last: int) -> np.ndarray:
        files, per_file = self._files(rank), self.share.samples_per_file
        ends = np.array([first * self._step_records, last * self._step_records + self.shuffle - 2])
        groups = ends // (self.in_turn * per_file)
        chosen = np.arange(groups[0] * self.in_turn, min((groups[1] + 1) * self.in_turn, len(files)))
        if not len(chosen):
            return np.empty(0, dtype=_READ)
        size = self.files["size"][files[chosen]]
        counts = self._requests(size, size // per_file)
        # Each file is opened, read, read at its end, and closed.
        row, number = numbered(counts + 3)
        is_read, turn, record_bytes = (number > 0) & (number <= counts[row]), chosen[row], size[row] // per_file
        at, until = (
            np.minimum(self._request_begin(each, record_bytes), size[row])
            for each in (np.maximum(number - 1, 0), number)
        )
        record = np.minimum(at // record_bytes, per_file - 1)
        position = self._position(files, turn, record)
        room = self._room(turn, position, record)
        fetch = np.maximum(position - self.shuffle + 1, 0) // self._step_records
        op = np.select([number == 0, number == counts[row] + 2], [OPEN, CLOSE], READ)
        found = rows_of(
            _READ,
            file=files[turn],
            turn=turn,
            fetch=fetch,
            follows=np.where(room < 0, 0, 2 * (room // self._step_records) + 1),
            op=op,
            offset=np.where(op == READ, at, NO_OFFSET),
            length=np.where(is_read, until - at, 0),
            needed=True,
        )
        return found[(fetch >= first) & (fetch < last)]

    def _further_pass(self, rank: int, pass_number: int, again: int) -> np.ndarray:
        """Reads of a further pass, of `again` records, that begins at the end of this one and is closed with it."""
        files, per_file = self._files(rank), self.share.samples_per_file
        fetch, turn = self.fetches - 1, np.arange(len(files))
        left = np.maximum(again - turn // self.in_turn * self.in_turn * per_file, 0)
        taken = np.clip(-(-(left - turn % self.in_turn) // self.in_turn), 0, per_file)
        opened = turn < (1 + OPENED_AHEAD) * self.in_turn + np.count_nonzero(taken == per_file)
        turn, records = turn[opened], np.minimum(taken[opened] + SECOND_PASS_AHEAD, per_file)
        whole, sizes = records == per_file, self.files["size"][files[opened]]
        counts = self._requests(records * (sizes // per_file), sizes // per_file)
        row, place = numbered(counts + 2 + whole)
        size, record_bytes = sizes[row], sizes[row] // per_file
        at, until = (self._request_begin(each, record_bytes) for each in (place - 1, place))
        is_read = (place > 0) & (place <= counts[row])
        ends = (place == 0) | (place == counts[row] + 1 + whole[row])
        record = np.maximum(at, 0) // record_bytes
        position = self._position(files, turn[row], np.minimum(record, per_file - 1))
        begin = pass_number * len(files) * per_file - self._records_ahead
        room = begin + np.where(record < RECORDS_AHEAD, np.minimum(position, 0), position)
        ended = np.minimum(room // self._step_records, fetch - 1)
        takes_first = pass_number == 1 and self.fetches > self.share.steps
        return rows_of(
            _READ,
            file=files[turn[row]],
            turn=pass_number * len(files) + turn[row],
            fetch=fetch,
            follows=np.where((room < 0) | (ended < 0), 0, 2 * ended + 1),
            op=np.select([place == 0, ends], [OPEN, CLOSE], READ),
            offset=np.where(ends, NO_OFFSET, np.minimum(at, size)),
            length=np.where(is_read, np.minimum(until, size) - at, 0),
            needed=(place <= counts[row]) & (position < self._step_records) & takes_first,
        )

    def _in_pieces(self, rank: int, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """The operations by fetch, turn and moment, and the piece of each."""
        reads = self._reads(rank, first, last)
        reads = reads[np.lexsort((~reads["needed"], reads["follows"], reads["turn"], reads["fetch"]))]
        keys = np.stack([reads[name] for name in ("fetch", "turn", "follows", "needed")])
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
                lane=self.first_lane + begins["turn"] % ((1 + OPENED_AHEAD) * self.in_turn),
                follows=begins["follows"],
                busy_ns=busy + self._parsing_ns(rank, begins, first, last),
                begin_ns=0,
                needed=begins["needed"],
            )
            parts.append(mine)
        found = np.concatenate(parts)
        return found[np.lexsort((found["row"], found["turn"], found["fetch"]))]

    def _parsing_ns(self, rank: int, pieces: np.ndarray, first: int, last: int) -> np.ndarray:
        """Time from each piece (an operation of it) until the batch is ready; only the last needed one of a fetch has
        any."""
        parsing, batch = np.zeros(len(pieces), dtype=np.int64), self.share.batch
        if self.preprocessing is not None:
            sums = self.preprocessing(rank, first * batch, last * batch).reshape(-1, batch).sum(axis=1) // self.parsers
            needed = np.flatnonzero(pieces["needed"])
            fetch = pieces["fetch"][needed]
            is_last = np.diff(fetch, append=-1) != 0
            parsing[needed[is_last]] = sums[fetch[is_last] - first]
        return parsing

    def operations(self, rank: int, first: int, last: int) -> np.ndarray:
        """The operations (OPERATION) of a rank for the fetches [first, last)."""
        reads, piece = self._in_pieces(rank, first, last)
        ready, ends = np.zeros(len(reads), dtype=np.int64), np.flatnonzero(np.diff(piece, append=-1))
        ready[ends] = self._parsing_ns(rank, reads[ends], first, last)
        return rows_of(
            OPERATION,
            piece=piece,
            op=reads["op"],
            file_id=self.files["file_id"][reads["file"]],
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
        return -(-(shared.files - ranks) // shared.ranks)
