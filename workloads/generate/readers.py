"""Makes DLIO's loaders from a description: readers that work ahead of the training loop, for each pass of a run.

The readers of a pass give `pieces(ranks, first, last)` (PIECE) and `operations(rank, first, last)` (OPERATION) of the
fetches [first, last); the `depth`, in fetches, by which a piece is ahead of the loop at most; about how many pieces and
operations a fetch has (`piece_count`, `fetch_operations`); and `alike(ranks)`: ranks with the same number have
identical pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np

from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import READ
from dxt_replay.traces.units import seconds_to_ns
from dxt_replay.workloads.description import NO_TIME, Workload
from dxt_replay.workloads.generate.checkpoints import LOADING_READERS, FileOperations
from dxt_replay.workloads.generate.clock import (
    OPERATION,
    PIECE,
    AssumedDevice,
    compute_times_ns,
    draw_alike,
    preprocess_times_ns,
)
from dxt_replay.workloads.generate.order import BATCH_SAMPLE, sample_order
from dxt_replay.workloads.generate.plan import Pass, run_plan
from dxt_replay.workloads.generate.requests import (
    CLOSE,
    HDF5_SIEVE_BYTES,
    NO_OFFSET,
    OPEN,
    SAMPLE,
    STAT,
    Layout,
    rows_of,
    sample_requests,
)
from dxt_replay.workloads.generate.run_files import RunFiles
from dxt_replay.workloads.generate.tfrecord import OPENED_AHEAD, TRANSFER_BYTES, TfrecordReads

STREAM_BATCHES = 3
"""Batches that a stream of tf.data buffers: its default of twice the block length, and the one in the making."""

COST_OPERATIONS = 1 << 20
"""Operations that are computed at a time to find the durations of samples."""


class Loaders:
    """The readers of each pass, and the compute and pause times of each rank.

    block_bytes: block size of the file system. seed: of all draws.
    Raises: UsageError as `run_plan`, and where the ranks do not suffice for the model.
    """

    def __init__(self, workload: Workload, ranks: int, device: AssumedDevice, seed: int, block_bytes: int) -> None:
        self.workload, self.device, self.seed, self.block_bytes = workload, device, seed, block_bytes
        self.plan = run_plan(workload, ranks)
        self.files = RunFiles(workload, self.plan, ranks, block_bytes)
        reader = workload.reader
        self.is_tfrecord = reader.data_loader == "tensorflow" and workload.dataset.format == "tfrecord"
        # tf.data has at least one reader; its TFRecord reader has more lanes than files that it reads in turn.
        self.readers = reader.read_threads if reader.data_loader == "pytorch" else max(reader.read_threads, 1)
        self.lanes = (1 + OPENED_AHEAD) * self.readers if self.is_tfrecord else self.readers
        self.lane_count = 1 + self.lanes * (2 if workload.workflow.evaluation else 1)
        self.pause_ns = seconds_to_ns(abs(workload.checkpoint.time_between_checkpoints))
        self._passes: dict[tuple[bool, int], BatchReads | TfrecordReads] = {}

    @property
    def depth(self) -> int:
        """Batches that are given out ahead of the loop."""
        reader, readers = self.workload.reader, max(self.readers, 1)
        if reader.data_loader == "tensorflow":
            return STREAM_BATCHES * readers + reader.prefetch_size
        if reader.data_loader == "pytorch":
            return readers * (math.ceil(reader.prefetch_size / readers) or 2)
        return max(reader.prefetch_size, 1)

    def of(self, segment: Pass) -> BatchReads | TfrecordReads:
        """The readers of one pass."""
        key = (segment.evaluation, segment.epoch)
        if key not in self._passes:
            self._passes[key] = self._tfrecord(segment) if self.is_tfrecord else BatchReads(self, segment)
        return self._passes[key]

    def preprocessing(self, segment: Pass) -> Callable[[int, int, int], np.ndarray] | None:
        """(rank, first, last) -> int64 ns that a reader works on each of the samples [first, last) of a rank in the
        pass, after its reads; None for no time."""
        if self.workload.reader.preprocess_time == NO_TIME:
            return None
        return lambda rank, first, last: preprocess_times_ns(self.workload, rank, segment.epoch, last, seed=self.seed)[
            first:last
        ]

    def _tfrecord(self, segment: Pass) -> TfrecordReads:
        reader = self.workload.reader
        shared = self.plan.evaluation if segment.evaluation else self.plan.train
        shuffle = reader.shuffle_size if reader.sample_shuffle != "off" else 1
        kept = 1 if shared.files >= shared.ranks else shared.ranks
        again: tuple[int, ...] = ()
        # DLIO repeats the data set and takes the batches of all epochs, anew in each epoch and evaluation: that
        # many are buffered when the loop has taken the last batch of the pass.
        epochs = self.workload.train.epochs
        ready = min(reader.prefetch_size, (epochs - 1) * shared.steps)
        repeats = segment.steps >= shared.steps and epochs > 1
        if repeats and (ready or segment.fetches > segment.steps):
            whole, batches = divmod(max(ready - 1, 0), shared.steps)
            last = min(ready, batches + 1) + reader.computation_threads
            records = (shuffle if shuffle > 1 else 0) + last * shared.batch * kept
            again = (shared.files * shared.samples_per_file,) * whole + (records,)
        return TfrecordReads(
            share=shared,
            files=self.files.data[segment.evaluation],
            device=self.device,
            transfer_bytes=TRANSFER_BYTES if reader.transfer_size is None else reader.transfer_size,
            in_turn=self.readers,
            first_lane=1 + self.lanes * segment.evaluation,
            shuffle=shuffle,
            batches_ahead=reader.computation_threads + reader.prefetch_size,
            fetches=segment.fetches,
            again=again,
            preprocessing=self.preprocessing(segment),
            parsers=max(reader.computation_threads, 1),
        )

    def compute_ns(self, ranks: np.ndarray, segment: Pass, first: int, last: int) -> np.ndarray:
        """int64 (last - first, ranks): compute times of the steps of a pass, ns."""
        columns = [
            compute_times_ns(
                self.workload, rank, segment.epoch, segment.steps, seed=self.seed, evaluation=segment.evaluation
            )[first:last]
            for rank in ranks.tolist()
        ]
        return np.stack(columns, axis=1)

    def _duration_ns(self, operations: tuple[FileOperations, ...]) -> int:
        """As long as the thread that works longest."""
        lasts = np.zeros(1 + LOADING_READERS, dtype=np.int64)
        for each in operations:
            np.add.at(lasts, each.rows["thread"], self.device.durations_ns(each.rows["op"], each.rows["length"]))
        return max(int(lasts.max()), 1) if operations else 0

    def checkpoint_ns(self, ranks: np.ndarray, *, loads: bool) -> np.ndarray:
        """int64 (ranks,): duration of writing or reading a checkpoint; 0 for ranks that take no part."""
        found = [self._duration_ns(self.files.checkpoint_operations(rank, loads=loads)) for rank in ranks.tolist()]
        return np.array(found, dtype=np.int64)

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """int64 per rank: ranks with the same number do everything at the same times."""
        times = (self.workload.train.computation_time, self.workload.evaluation.eval_time)
        if not draw_alike(self.workload) and any(each.family != "constant" for each in times):
            return ranks
        keys = [np.zeros(len(ranks), dtype=np.int64)]
        if self.plan.checkpoints:
            keys += [self.checkpoint_ns(ranks, loads=False), self.checkpoint_ns(ranks, loads=True)]
        keys += [self.of(each).alike(ranks) for each in self.plan.passes]
        return distinct_rows(*keys).inverse


class BatchReads:
    """Readers that make whole batches: every loader but tf.data over TFRecord. With no lanes of their own, the training
    thread reads when it begins a fetch.

    The readers also read batches of the order beyond the fetches of the pass, in vain, during the loop's last fetch.
    Before their first batch they load the index files, where the format has some.
    """

    piece_count = 1

    def __init__(self, loaders: Loaders, segment: Pass) -> None:
        workload, plan, evaluation = loaders.workload, loaders.plan, segment.evaluation
        reader, data = workload.reader, workload.dataset
        pytorch = reader.data_loader == "pytorch"
        shared = plan.evaluation if evaluation else plan.train
        self._layout = Layout(
            format="synthetic" if data.format == "tfrecord" else data.format,
            block_bytes=loaders.block_bytes,
            samples_per_file=data.num_samples_per_file,
            odirect=reader.odirect,
            whole=pytorch,
            hdf5=loaders.files.layouts[0] if loaders.files.layouts else None,
        )
        self.depth = loaders.depth
        fetches = segment.fetches
        first = next(each for each in plan.passes if each.evaluation == evaluation) is segment
        self._order = sample_order(
            workload, shared, epoch=segment.epoch, first_pass=first, readers=loaders.readers, fetches=fetches
        )
        self._files, self._sides = loaders.files.data[evaluation], loaders.files.sides[evaluation]
        self._device, self._preprocessing = loaders.device, loaders.preprocessing(segment)
        self._lanes, self._first_lane = loaders.lanes, 1 + loaders.lanes * evaluation
        self._batch, self._fetches = shared.batch, fetches
        # PyTorch starts new readers in each epoch.
        self._indexing = max(self._lanes, 1) if len(self._sides) and (pytorch or first) else 0

    @cached_property
    def _reach_bytes(self) -> int:
        """Bytes that are read at least for a sample, unless its file ends before."""
        if self._layout.format == "indexed_binary":
            return self._layout.block_bytes
        hdf5 = self._layout.hdf5
        return HDF5_SIEVE_BYTES * len(hdf5.names) if hdf5 and not hdf5.chunk_shape else 0

    @cached_property
    def _one_cost(self) -> bool:
        """Whether the duration of a sample depends neither on its file nor on its place there."""
        files = self._files
        equal = not len(files) or all(np.ptp(files[name]) == 0 for name in ("size", "sample_bytes", "row_chunks"))
        return equal and bool(np.all(files["sample_bytes"] >= self._reach_bytes))

    @property
    def fetch_operations(self) -> int:
        """About the number of operations of a fetch."""
        if not len(self._files):
            return 1
        largest = np.array([int(np.argmax(self._files["size"]))])
        sample = rows_of(BATCH_SAMPLE, fetch=largest, file=largest, index=0, opens=True, closes=True)
        return max(1, self._batch * len(self._requests(sample)))

    def _requests(self, samples: np.ndarray) -> np.ndarray:
        of_files = {name: samples[name] for name in ("index", "opens", "closes")}
        return sample_requests(rows_of(SAMPLE, file=self._files[samples["file"]], **of_files), self._layout)

    def _durations_ns(self, samples: np.ndarray) -> np.ndarray:
        """int64 per sample. Equal samples are computed once."""
        keys, files = [2 * samples["opens"].astype(np.int64) + samples["closes"]], self._files[samples["file"]]
        if (
            not self._one_cost
        ):  # a sample also differs by the samples to the end of its file, as far as a request reaches
            most = self._reach_bytes // np.maximum(files["sample_bytes"], 1) + 1
            until_end = np.minimum(self._layout.samples_per_file - samples["index"], most)
            keys = [files["size"], files["sample_bytes"], files["row_chunks"], until_end, *keys]
        _, one, which = distinct_rows(*keys)
        found, begin = np.empty(len(one), dtype=np.int64), 0
        while begin < len(one):
            operations = 8 + max(1, int(files["size"][one[begin]]) // (1 << 16))
            part = samples[one[begin : begin + max(1, COST_OPERATIONS // operations)]]
            requests, costs = self._requests(part), np.zeros(len(part), dtype=np.int64)
            np.add.at(costs, requests["sample"], self._device.durations_ns(requests["op"], requests["length"]))
            found[begin : begin + len(part)] = costs
            begin += len(part)
        return found[which]

    def _preprocessing_ns(self, rank: int, samples: np.ndarray, first: int, last: int) -> np.ndarray:
        """Time that the reader works on each sample after its reads."""
        if self._preprocessing is None:
            return np.zeros(len(samples), dtype=np.int64)
        fetch = samples["fetch"]
        number = np.arange(len(fetch)) - np.searchsorted(fetch, fetch, side="left")
        found: np.ndarray = self._preprocessing(rank, first * self._batch, last * self._batch)
        return found[(fetch - first) * self._batch + number]

    def _last(self, last: int) -> int:
        """The end of the batches that are read for the fetches [.., last), those read in vain included."""
        return max(self._order.batches, last) if last == self._fetches else last

    def pieces(self, ranks: np.ndarray, first: int, last: int) -> np.ndarray:
        """The pieces (PIECE) of these ranks for the fetches [first, last)."""
        last = self._last(last)
        busy = np.zeros((last - first, len(ranks)), dtype=np.int64)
        for row, rank in enumerate(ranks.tolist()):
            samples = self._order.samples(rank, first, last)
            lasts = self._durations_ns(samples) + self._preprocessing_ns(rank, samples, first, last)
            np.add.at(busy[:, row], samples["fetch"] - first, lasts)
            if first < self._indexing:
                loads = self._index_operations(rank)
                busy[: self._indexing - first, row] += self._device.durations_ns(loads["op"], loads["length"]).sum()
        place, row_of = (each.reshape(-1) for each in np.indices(busy.shape))
        batch = first + place
        fetch = np.minimum(batch, self._fetches - 1)
        if self._lanes:
            lane = self._first_lane + self._order.reader(batch)
            follows = np.where(batch < self.depth, 0, 2 * (batch - self.depth) + 1)
        else:
            lane, follows = np.zeros_like(batch), 2 * batch
        return rows_of(
            PIECE,
            row=row_of,
            fetch=fetch,
            turn=batch - fetch,
            lane=lane,
            follows=follows,
            busy_ns=busy.reshape(-1),
            begin_ns=0,
            needed=batch < self._fetches,
        )

    def operations(self, rank: int, first: int, last: int) -> np.ndarray:
        """The operations (OPERATION) of a rank for the fetches [first, last)."""
        last = self._last(last)
        samples = self._order.samples(rank, first, last)
        requests = self._requests(samples)
        sample = requests["sample"]
        busy = self._preprocessing_ns(rank, samples, first, last)
        before, ready = _around(busy, samples["fetch"], sample) if busy.any() else (0, 0)
        found = rows_of(
            OPERATION,
            piece=samples["fetch"][sample] - first,
            op=requests["op"],
            file_id=self._files["file_id"][samples["file"][sample]],
            offset=requests["offset"],
            length=requests["length"],
            before_ns=before,
            ready_ns=ready,
        )
        if first < self._indexing:
            loads, loading = self._index_operations(rank), min(last, self._indexing) - first
            every = np.tile(loads, loading)
            every["piece"] = np.repeat(np.arange(loading), len(loads))
            found = np.concatenate((every, found))
            found = found[np.argsort(found["piece"], kind="stable")]
        return found

    def _index_operations(self, rank: int) -> np.ndarray:
        """The operations (OPERATION) with which a reader loads the index files of the rank's samples, each at once."""
        files = np.unique(self._order.samples(rank, 0, self._fetches)["file"])
        ids = self._sides[:, files].T.reshape(-1)
        return rows_of(
            OPERATION,
            piece=0,
            op=np.tile([OPEN, STAT, READ, CLOSE], len(ids)),
            file_id=np.repeat(ids, 4),
            offset=np.tile([NO_OFFSET, NO_OFFSET, 0, NO_OFFSET], len(ids)),
            length=np.tile([0, 0, 8 * self._layout.samples_per_file, 0], len(ids)),
            before_ns=0,
            ready_ns=0,
        )

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """int64 per rank: ranks with the same number have identical pieces."""
        if not self._one_cost or self._indexing or self._preprocessing is not None:
            return ranks
        return self._order.alike(ranks)


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
