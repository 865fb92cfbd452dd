"""Makes DLIO's loaders from a description: the readers of each pass of a generated run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.units import seconds_to_ns
from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.generate.assumed_device import AssumedDevice
from dxt_replay.workloads.generate.draws import compute_times_ns, preprocess_times_ns
from dxt_replay.workloads.generate.read_ahead import BatchReads, DataFiles, PassReads, Preprocessing, SampleCosts
from dxt_replay.workloads.generate.request_templates import Layout
from dxt_replay.workloads.generate.run_files import RunFiles
from dxt_replay.workloads.generate.run_plan import Pass
from dxt_replay.workloads.generate.sample_order import Share, sample_order
from dxt_replay.workloads.generate.tfrecord_reads import TRANSFER_BYTES, TfrecordReads
from dxt_replay.workloads.times import NO_TIME

STREAM_BATCHES = 3
"""Batches that a stream of tf.data buffers: its default of twice the block length, and the one in the making."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loaders:
    """The readers of each pass, and the compute and pause times of each rank.

    block_bytes: block size of the file system. seed: of all draws.
    """

    workload: Workload
    files: RunFiles
    device: AssumedDevice
    seed: int
    block_bytes: int
    _passes: dict[tuple[bool, int], PassReads] = field(default_factory=dict)

    @property
    def lane_count(self) -> int:
        """Lanes of a rank, the training thread's included."""
        return 1 + self._readers * (2 if self.workload.workflow.evaluation else 1)

    @property
    def _is_tfrecord(self) -> bool:
        return self.workload.reader.data_loader == "tensorflow" and self.workload.dataset.format == "tfrecord"

    @property
    def _is_mlperf(self) -> bool:
        """Whether to follow MLPerf's own line of DLIO, which starts new readers in each epoch."""
        return self.workload.reading == "v3.0"

    @property
    def _in_turn(self) -> int:
        """Readers that the description requests; tf.data has at least one."""
        threads = self.workload.reader.read_threads
        return max(threads, 1) if self.workload.reader.data_loader != "pytorch" else threads

    @property
    def _readers(self) -> int:
        """Lanes of a loader."""
        return 3 * self._in_turn if self._is_tfrecord else self._in_turn

    @property
    def fetches_itself(self) -> bool:
        """Whether the training thread itself reads."""
        return self._readers == 0

    def of(self, segment: Pass) -> PassReads:
        """The readers of one pass."""
        key = (segment.evaluation, segment.epoch)
        if key not in self._passes:
            self._passes[key] = self._made(segment)
        return self._passes[key]

    def _made(self, segment: Pass) -> PassReads:
        plan, evaluation = self.files.plan, segment.evaluation
        shared = plan.evaluation if evaluation else plan.train
        files = self.files.evaluation if evaluation else self.files.train
        first_lane = 1 + (self._readers if evaluation else 0)
        if self._is_tfrecord:
            return self._tfrecord(segment, shared, files, first_lane)
        reader, data = self.workload.reader, self.workload.dataset
        synthetic = reader.data_loader == "synthetic" or (data.format == "tfrecord")
        mapped = reader.data_loader == "native_dali" and not reader.dont_use_mmap
        layout = Layout(
            block_bytes=self.block_bytes,
            samples_per_file=data.num_samples_per_file,
            odirect=reader.odirect or reader.data_loader == "native_dali",
            whole=self._is_mlperf,
            hdf5=self.files.hdf5,
        )
        return BatchReads(
            order=sample_order(
                self.workload,
                shared,
                epoch=segment.epoch,
                readers=self._in_turn,
                fetches=segment.fetches,
                ahead=self._depth() - 1,
            ),
            costs=SampleCosts(
                file_format="synthetic" if synthetic or mapped else data.format,
                layout=layout,
                files=files,
                device=self.device,
            ),
            preprocessing=self._preprocessing(segment),
            first_lane=first_lane,
            lanes=self._readers,
            depth=self._depth(),
            batch=shared.batch,
            fetches=segment.fetches,
            indexes=len(files.side_ids) > 0 and (self._is_mlperf or self._first_of_loader(segment)),
        )

    def _preprocessing(self, segment: Pass) -> Preprocessing | None:
        if self.workload.reader.preprocess_time == NO_TIME:
            return None
        return lambda rank, first, last: preprocess_times_ns(self.workload, rank, segment.epoch, last, seed=self.seed)[
            first:last
        ]

    def _first_of_loader(self, segment: Pass) -> bool:
        return next(each for each in self.files.plan.passes if each.evaluation == segment.evaluation) is segment

    def _depth(self) -> int:
        """Batches that are given out ahead of the loop."""
        reader, readers = self.workload.reader, max(self._in_turn, 1)
        if reader.data_loader == "tensorflow":
            return STREAM_BATCHES * readers + reader.prefetch_size
        if reader.data_loader == "pytorch":
            return readers * (math.ceil(reader.prefetch_size / readers) or 2)
        return max(reader.prefetch_size, 1)

    def _tfrecord(self, segment: Pass, shared: Share, files: DataFiles, first_lane: int) -> TfrecordReads:
        reader = self.workload.reader
        literal = self.workload.reading != "documented"
        by_file = shared.files >= shared.ranks if literal else shared.files % shared.ranks == 0
        kept = shared.ranks if literal and not by_file else 1
        shuffle = reader.shuffle_size if reader.sample_shuffle != "off" else 1
        ahead = reader.computation_threads + reader.prefetch_size
        return TfrecordReads(
            share=shared,
            files=files,
            device=self.device,
            transfer_bytes=TRANSFER_BYTES if reader.transfer_size is None else reader.transfer_size,
            in_turn=self._in_turn,
            first_lane=first_lane,
            kept=kept,
            shuffle=shuffle,
            batches_ahead=ahead,
            by_file=by_file,
            fetches=segment.fetches,
            again=self._read_again(segment, shared, kept, shuffle) if literal else (),
            preprocessing=None if literal else self._preprocessing(segment),
            parsers=max(reader.computation_threads, 1),
        )

    def _read_again(self, segment: Pass, shared: Share, kept: int, shuffle: int) -> tuple[int, ...]:
        """See TfrecordReads.

        DLIO's code repeats the data set and takes the batches of all epochs, anew in each epoch and evaluation: that
        many are buffered when the loop has taken the last batch of the pass."""
        reader, epochs = self.workload.reader, self.workload.train.epochs
        ready = min(reader.prefetch_size, (epochs - 1) * shared.steps)
        if segment.steps < shared.steps or epochs == 1 or not (ready or segment.fetches > segment.steps):
            return ()
        whole, batches = divmod(max(ready - 1, 0), shared.steps)
        last = min(ready, batches + 1) + reader.computation_threads
        records = (shuffle if shuffle > 1 else 0) + last * shared.batch * kept
        return (shared.files * shared.samples_per_file,) * whole + (records,)

    @property
    def _is_seeded(self) -> bool:
        """Whether DLIO's code seeds its draws equally on all ranks: it does for a shuffle."""
        shuffled = {self.workload.reader.file_shuffle, self.workload.reader.sample_shuffle} != {"off"}
        return self.workload.reading != "documented" and shuffled

    @property
    def _uniform_times(self) -> bool:
        """Whether all ranks have the same compute times."""
        times = (self.workload.train.computation_time, self.workload.evaluation.eval_time)
        return self._is_seeded or all(each.family == "constant" for each in times)

    def _shuffled(self) -> tuple[int, ...]:
        """Lengths of the arrays that DLIO shuffles after it seeded its draws in an epoch."""
        train, evaluation, reader = self.files.plan.train, self.files.plan.evaluation, self.workload.reader
        if reader.sample_shuffle != "off":
            return (evaluation.per_rank if evaluation.files else train.per_rank,)
        return (train.files, evaluation.files)

    def compute_ns(self, ranks: np.ndarray, segment: Pass, first: int, last: int) -> np.ndarray:
        """int64 (last - first, ranks): compute times of the steps of a pass, ns."""
        columns = [self._of_rank(rank, segment)[first:last] for rank in ranks.tolist()]
        return np.stack(columns, axis=1)

    def _of_rank(self, rank: int, segment: Pass) -> np.ndarray:
        """int64: compute time of each step of a pass, ns."""
        epoch, trained = segment.epoch, None
        if segment.evaluation:
            trained = sum(each.steps for each in self.files.plan.passes if not each.evaluation and each.epoch == epoch)
        return compute_times_ns(
            self.workload, rank, epoch, segment.steps, seed=self.seed, burn_in=self._shuffled(), trained=trained
        )

    def pause_ns(self) -> int:
        """The pause before each checkpoint of a run without training."""
        return seconds_to_ns(abs(self.workload.checkpoint.time_between_checkpoints))

    def checkpoint_ns(self, ranks: np.ndarray, *, loads: bool) -> np.ndarray:
        """int64 (ranks,): duration of writing or reading a checkpoint; 0 for ranks that take no part."""
        found = []
        for rank in ranks.tolist():
            operations = self.files.checkpoint_operations(rank, loads=loads)
            lasts = sum(int(self.device.durations_ns(each.op, each.length).sum()) for each in operations)
            found.append(max(lasts, 1) if operations else 0)
        return np.array(found, dtype=np.int64)

    def alike(self, ranks: np.ndarray) -> np.ndarray:
        """int64 per rank: ranks with the same number do everything at the same times."""
        if not self._uniform_times:
            return ranks
        keys = [np.zeros(len(ranks), dtype=np.int64)]
        if self.files.plan.checkpoints:
            keys += [self.checkpoint_ns(ranks, loads=False), self.checkpoint_ns(ranks, loads=True)]
        keys += [self.of(each).alike(ranks) for each in self.files.plan.passes]
        return distinct_rows(*keys).inverse
