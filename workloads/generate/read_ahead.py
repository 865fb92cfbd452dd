"""Readers that work ahead of the training loop: pieces of work, the event that each waits for, and its operations.
Pure.

A *piece* is the work of one reader for one batch fetch without a wait in between. Fetches and moments are counted from
the begin of a pass over the data: moment 2 n is the begin of fetch n, 2 n + 1 its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.workloads.description import Format
from dxt_replay.workloads.generate.assumed_device import AssumedDevice
from dxt_replay.workloads.generate.columns import Columns
from dxt_replay.workloads.generate.request_templates import (
    HDF5_SIEVE_BYTES,
    Layout,
    Requests,
    Samples,
    index_requests,
    sample_requests,
)
from dxt_replay.workloads.generate.sample_order import BatchSamples, SampleOrder

Preprocessing = Callable[[int, int, int], np.ndarray]
"""(rank, first, last) -> time in int64 ns that a reader works on each sample after its reads, for the samples [first,
last) of a rank in the pass."""

COST_OPERATIONS = 1 << 20
"""Operations that are computed at a time to find the durations of samples."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pieces(Columns):
    """The pieces of several ranks for some fetches, int64 (p,): by fetch, then by their place in the rank's fetch.

    row: index of the rank in the request. fetch, lane: of the piece. turn: its place among the rank's pieces of the
    fetch.
    follows: the earliest moment at which it can begin.
    busy_ns: time that its reader works on it.
    needed: bool, whether the fetch waits for it.
    """

    row: np.ndarray
    fetch: np.ndarray
    turn: np.ndarray
    lane: np.ndarray
    follows: np.ndarray
    busy_ns: np.ndarray
    needed: np.ndarray


NO_PIECES = Pieces(**{name: np.empty(0, dtype=np.int64) for name in Pieces.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PieceOperations(Columns):
    """The operations of one rank for some fetches, (n,): piece after piece, in the order of `Pieces`.

    piece: int64, index of the piece in the request.
    op: int8.
    file_id: int32.
    offset, length: int64, bytes.
    before_ns: int64, work of the reader between the previous operation of the piece and this one.
    ready_ns: int64, its work after the last operation of the piece; 0 for others.
    """

    piece: np.ndarray
    op: np.ndarray
    file_id: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    before_ns: np.ndarray
    ready_ns: np.ndarray


class PassReads(Protocol):
    """The reads of all ranks in one pass over a data set."""

    @property
    def depth(self) -> int:
        """Largest number of fetches by which a piece is ahead of the loop."""

    @property
    def piece_count(self) -> int:
        """Approximate number of pieces of a fetch."""

    @property
    def fetch_operations(self) -> int:
        """Approximate number of operations of a fetch."""

    def pieces(self, ranks: np.ndarray, first: int, last: int) -> Pieces:
        """The pieces of these ranks for the fetches [first, last)."""

    def operations(self, rank: int, first: int, last: int) -> PieceOperations:
        """The operations of a rank for the fetches [first, last)."""

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """int64 per rank: ranks with the same number have identical pieces."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataFiles:
    """The files of a data set in reading order, arrays (files,).

    file_id: int32. size, sample_bytes: int64, of the file and of each of its samples. row_chunks: int64, HDF5 chunks
    of a dataset that cover a sample.
    side_ids: int32 (kinds, files), the index files beside them; (0, files) without any.
    """

    file_id: np.ndarray
    size: np.ndarray
    sample_bytes: np.ndarray
    row_chunks: np.ndarray
    side_ids: np.ndarray

    @property
    def uniform(self) -> bool:
        """Whether all files are equal."""
        return bool(
            len(self.size) == 0
            or (np.ptp(self.size) == 0 and np.ptp(self.sample_bytes) == 0 and np.ptp(self.row_chunks) == 0)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleCosts:
    """The durations of samples' operations on a device."""

    file_format: Format
    layout: Layout
    files: DataFiles
    device: AssumedDevice

    def requests(self, samples: BatchSamples) -> Requests:
        """The operations of each sample."""
        return sample_requests(
            self.file_format,
            Samples(
                size=self.files.size[samples.file],
                sample_bytes=self.files.sample_bytes[samples.file],
                row_chunks=self.files.row_chunks[samples.file],
                index=samples.index,
                opens=samples.opens,
                closes=samples.closes,
            ),
            self.layout,
        )

    def durations_ns(self, samples: BatchSamples) -> np.ndarray:
        """int64 per sample. Equal samples are computed once."""
        keys = [2 * samples.opens.astype(np.int64) + samples.closes]
        if not (self.files.uniform and self.same_everywhere):
            of_file = (self.files.size, self.files.sample_bytes, self.files.row_chunks)
            keys = [*(each[samples.file] for each in of_file), self._until_end(samples), *keys]
        _, one, which = distinct_rows(*keys)
        found = np.empty(len(one), dtype=np.int64)
        begin = 0
        while begin < len(one):
            operations = max(1, int(self.files.size[samples.file[one[begin]]]) // (1 << 16))
            end = begin + max(1, COST_OPERATIONS // (8 + operations))
            found[begin:end] = self._worked_out(samples.at(one[begin:end]))
            begin = end
        return found[which]

    def _until_end(self, samples: BatchSamples) -> np.ndarray:
        """int64 per sample: samples from it to the end of its file, limited to the reach of one request."""
        most = self._reach_bytes // np.maximum(self.files.sample_bytes[samples.file], 1) + 1
        return np.minimum(self.layout.samples_per_file - samples.index, most)

    @property
    def same_everywhere(self) -> bool:
        """Whether the duration of a sample is independent of its place in the file."""
        return bool(np.all(self.files.sample_bytes >= self._reach_bytes))

    @property
    def _reach_bytes(self) -> int:
        """Bytes that are read at least for a sample, unless its file ends before."""
        if self.file_format == "indexed_binary":
            return self.layout.block_bytes
        contiguous = self.layout.hdf5 if self.layout.hdf5 and not self.layout.hdf5.chunk_rows else None
        return HDF5_SIEVE_BYTES * contiguous.datasets if contiguous else 0

    def _worked_out(self, samples: BatchSamples) -> np.ndarray:
        requests = self.requests(samples)
        found = np.zeros(len(samples.file), dtype=np.int64)
        np.add.at(found, requests.sample, self.device.durations_ns(requests.op, requests.length))
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchReads:
    """Readers that make whole batches (`PassReads`): every loader but tf.data over TFRecord.

    first_lane: lane of the first reader. lanes: readers; 0: the training thread reads when it begins a fetch.
    depth: batches that are assigned ahead. batch, fetches: samples of a fetch, and fetches of the pass. The readers
    also read batches of the order beyond `fetches`, in vain, during the loop's last fetch.
    indexes: whether the readers load index files before their first batch. preprocessing: None for no time.
    """

    order: SampleOrder
    costs: SampleCosts
    preprocessing: Preprocessing | None
    first_lane: int
    lanes: int
    depth: int
    batch: int
    fetches: int
    indexes: bool

    @property
    def piece_count(self) -> int:
        """See PassReads."""
        return 1

    @property
    def fetch_operations(self) -> int:
        """See PassReads."""
        files = self.costs.files
        if not len(files.size):
            return 1
        largest = int(np.argmax(files.size))
        one = np.array([largest])
        every = np.ones(1, dtype=bool)
        sample = BatchSamples(fetch=one, file=one, index=np.zeros(1, dtype=np.int64), opens=every, closes=every)
        return max(1, self.batch * int(self.costs.requests(sample).counts[0]))

    def pieces(self, ranks: np.ndarray, first: int, last: int) -> Pieces:
        """See PassReads."""
        last = self._with_vain(last)
        busy = np.stack([self._busy_ns(int(rank), first, last) for rank in ranks], axis=1)
        place, row = (each.reshape(-1) for each in np.indices(busy.shape))
        batch = first + place
        fetch = np.minimum(batch, self.fetches - 1)
        return Pieces(
            row=row,
            fetch=fetch,
            turn=batch - fetch,
            lane=self._lane(batch),
            follows=self._follows(batch),
            busy_ns=busy.reshape(-1),
            needed=batch < self.fetches,
        )

    def _with_vain(self, last: int) -> int:
        """The end of the batches that are read for the fetches [.., last), those read in vain included."""
        return max(self.order.batches, last) if last == self.fetches else last

    def _busy_ns(self, rank: int, first: int, last: int) -> np.ndarray:
        samples = self.order.samples(rank, first, last)
        durations = self.costs.durations_ns(samples)
        if self.preprocessing is not None:
            durations = durations + self._preprocessing_ns(self.preprocessing, rank, samples, first, last)
        busy = np.zeros(last - first, dtype=np.int64)
        np.add.at(busy, samples.fetch - first, durations)
        if self.indexes and first < max(self.lanes, 1):
            busy[: max(self.lanes, 1) - first] += self._index_ns(rank)
        return busy

    def _preprocessing_ns(
        self, preprocessing: Preprocessing, rank: int, samples: BatchSamples, first: int, last: int
    ) -> np.ndarray:
        """Time that the reader works on each sample after its reads."""
        number = np.arange(len(samples.fetch)) - np.searchsorted(samples.fetch, samples.fetch, side="left")
        busy = preprocessing(rank, first * self.batch, last * self.batch)
        chosen: np.ndarray = busy[(samples.fetch - first) * self.batch + number]
        return chosen

    def _lane(self, fetch: np.ndarray) -> np.ndarray:
        if not self.lanes:
            return np.zeros(len(fetch), dtype=np.int64)
        return self.first_lane + self.order.reader(fetch)

    def _follows(self, fetch: np.ndarray) -> np.ndarray:
        if not self.lanes:
            return 2 * fetch
        return np.where(fetch < self.depth, 0, 2 * (fetch - self.depth) + 1)

    def _indexed_files(self, rank: int) -> np.ndarray:
        """Files whose indexes a reader loads: those of the rank's samples."""
        return np.unique(self.order.samples(rank, 0, self.fetches).file)

    def _index_ns(self, rank: int) -> int:
        requests = self._index_requests(len(self._indexed_files(rank)))
        return int(self.costs.device.durations_ns(requests.op, requests.length).sum()) * len(self.costs.files.side_ids)

    def _index_requests(self, files: int) -> Requests:
        return index_requests(self.costs.layout.samples_per_file, files)

    def operations(self, rank: int, first: int, last: int) -> PieceOperations:
        """See PassReads."""
        last = self._with_vain(last)
        samples = self.order.samples(rank, first, last)
        requests = self.costs.requests(samples)
        sample = requests.sample
        columns = {
            "piece": samples.fetch[sample] - first,
            "op": requests.op,
            "file_id": self.costs.files.file_id[samples.file[sample]],
            "offset": requests.offset,
            "length": requests.length,
            "before_ns": np.zeros(len(sample), dtype=np.int64),
            "ready_ns": np.zeros(len(sample), dtype=np.int64),
        }
        if self.preprocessing is not None:
            busy = self._preprocessing_ns(self.preprocessing, rank, samples, first, last)
            columns["before_ns"], columns["ready_ns"] = _around(busy, samples.fetch, sample)
        found = PieceOperations(**columns)
        if self.indexes and first < max(self.lanes, 1):
            return self._with_indexes(found, rank, first, min(last, max(self.lanes, 1)))
        return found

    def _with_indexes(self, found: PieceOperations, rank: int, first: int, last: int) -> PieceOperations:
        """The operations, with the loads of indexes before the batches [first, last)."""
        files = self._indexed_files(rank)
        requests = self._index_requests(len(files))
        sides, repeats = self.costs.files.side_ids, last - first
        count, each = len(requests.op) * len(sides), len(requests.op) // len(files)
        added = {
            "piece": np.repeat(np.arange(repeats), count),
            "op": np.tile(requests.op, repeats * len(sides)),
            "file_id": np.tile(np.repeat(sides[:, files].T.reshape(-1), each), repeats),
            "offset": np.tile(requests.offset, repeats * len(sides)),
            "length": np.tile(requests.length, repeats * len(sides)),
            "before_ns": np.zeros(count * repeats, dtype=np.int64),
            "ready_ns": np.zeros(count * repeats, dtype=np.int64),
        }
        both = PieceOperations.joined((PieceOperations(**added), found))
        return both.at(np.argsort(both.piece, kind="stable"))

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """See PassReads."""
        if (
            not (self.costs.files.uniform and self.costs.same_everywhere)
            or self.indexes
            or self.preprocessing is not None
        ):
            return ranks
        return self.order.alike(ranks)


def _around(busy_ns: np.ndarray, fetch: np.ndarray, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Work of the reader before each operation since the previous one of its batch, and after the last one of a batch,
    for samples that are processed after their reads."""
    total = np.concatenate(([0], np.cumsum(busy_ns)))
    # A batch that begins with samples without operations needs their work before its first operation.
    first_of_batch = np.searchsorted(fetch, fetch, side="left")
    before_sample = np.where(np.diff(fetch[sample], prepend=-1) != 0, first_of_batch[sample], np.append(0, sample[:-1]))
    before = total[sample] - total[before_sample]
    is_last = np.diff(fetch[sample], append=-1) != 0
    last_of_batch = np.searchsorted(fetch, fetch, side="right")
    ready = np.where(is_last, total[last_of_batch[sample]] - total[sample], 0)
    return before, ready
