"""A PyTorch job whose times follow from its parts: a DataLoader with workers, as PyTorch deals batches to them.

The truth that predictions are held against, like `tests.simulated_application`: run the same job on two storages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dxt_replay.traces.schema import CaptureInfo, Job, RankClock
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Span, build_capture, lanes_table, read
from tests.simulated_application import MS, READ_BYTES, TRAINING_THREAD, US, Recorded, Storage

FILES = ["/data/train", "/data/validation"]
FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """A DataLoader and the job that uses it. Times in ns.

    made: batches of each worker in a pass; as many for each, one less at the end, unless a shard is exhausted early.
    start_ns: from the begin of a pass until its workers read. think_ns, ready_ns: before each read of a batch but the
    first, and after the last. late_ns: by how much the clocks of the workers' logs are late.
    validate_every: after so many steps another loader, with one worker of its own, makes a pass of 5 batches.
    threads: of each worker, which share the reads of a batch: whichever is free makes the next one.
    one_clock: all processes have one clock, and the capture says which process each lane belongs to.
    """

    made: tuple[int, ...] = (13, 12)
    prefetch: int = 2
    passes: int = 2
    persistent: bool = False
    reads: tuple[int, ...] = (6,)
    start_ns: int = 15 * MS
    think_ns: int = 300 * US
    ready_ns: int = 900 * US
    compute_ns: int = 8 * MS
    jitter: float = 0.3
    late_ns: int = 0
    validate_every: int = 0
    threads: int = 1
    one_clock: bool = False
    seed: int = 1


class _Job:
    def __init__(self, loader: Loader, storage: Storage) -> None:
        self._loader = loader
        self._storage = storage
        self._random = np.random.default_rng(loader.seed)
        self.recorded = Recorded()
        self.now = 5 * MS
        self.lanes = 0
        self._step = 0
        self._begun = self.now
        self._offset = 0

    def run(self) -> None:
        """All passes over the training data."""
        lanes: list[int] = []
        for _ in range(self._loader.passes):
            if not lanes or not self._loader.persistent:
                lanes = self._new_lanes(len(self._loader.made))
            for _ in self._pass(lanes, self._loader.made, 0):
                self.now += round(self._loader.compute_ns * self._random.lognormal(0.0, self._loader.jitter))
                if self._loader.validate_every and (self._step + 1) % self._loader.validate_every == 0:
                    for _ in self._pass(self._new_lanes(1), (5,), 1):
                        self.now += 500 * US
                self._span("step", self._begun, self.now)
                self._begun = self.now
                self._step += 1
        self.recorded.elapsed_ns = self.now

    def _new_lanes(self, count: int) -> list[int]:
        first, threads = self.lanes + 1, self._loader.threads
        self.lanes += count * threads
        return list(range(first, self.lanes + 1, threads))

    def _pass(self, lanes: list[int], made: tuple[int, ...], file_id: int) -> Iterator[None]:
        """Yield when a batch was fetched; the caller computes."""
        loader = self._loader
        free = dict.fromkeys(lanes, self.now + loader.start_ns)
        taken: dict[int, list[int]] = {lane: [] for lane in lanes}
        turns = [
            (own, lane) for own in range(max(made)) for lane, count in zip(lanes, made, strict=True) if own < count
        ]
        for own, lane in turns:
            room = taken[lane][own - loader.prefetch] if own >= loader.prefetch else 0
            ready = self._batch(lane, max(free[lane], room), file_id)
            free[lane] = ready
            begun, self.now = self.now, max(self.now + 20 * US, ready)
            taken[lane].append(self.now)
            self._span("input_wait", begun, self.now, FETCH)
            yield
        self._span("input_wait", self.now, self.now + 10 * US, FETCH)
        self.now += 30 * US

    def _batch(self, lane: int, now: int, file_id: int) -> int:
        """When a worker that begins to read a batch has made it ready."""
        late, free = self._loader.late_ns, [now] * self._loader.threads
        for _ in range(int(self._random.choice(self._loader.reads))):
            thread = free.index(min(free))
            begin = free[thread] + (self._loader.think_ns if free[thread] > now else 0)
            end = free[thread] = begin + self._storage.takes_ns(READ_BYTES)
            times = {"start_ns": begin + late, "end_ns": end + late}
            self.recorded.ops.append(read(file_id, lane=lane + thread, offset=self._offset, length=READ_BYTES, **times))
            self._offset += READ_BYTES
        return max(free) + self._loader.ready_ns

    def _span(self, kind: str, start_ns: int, end_ns: int, name: str = "") -> None:
        self.recorded.spans.append(
            Span(kind, start_ns, end_ns, name=name or kind, thread=TRAINING_THREAD, step=self._step)
        )


def run(loader: Loader, storage: Storage) -> Recorded:
    """The job on a storage, from time 0."""
    return _ran(loader, storage).recorded


def capture_of(folder: Path, loader: Loader, storage: Storage) -> Capture:
    """The capture of the job, with clocks of its workers that are known to 60 ms, or `one_clock`."""
    job = _ran(loader, storage)
    clock = tuple(
        RankClock(rank=0, method="wall", offset_ns=0, residual_ns=60 * MS, interval_ns=(-60 * MS, 0), worker=worker)
        for worker in range(1, 1 if loader.one_clock else job.lanes + 1)
    )
    rows = [(0, lane, "node", 100 + (lane - 1) // loader.threads, "worker") for lane in range(1, job.lanes + 1)]
    info = CaptureInfo(
        job=Job(nprocs=1, run_time_s=job.recorded.elapsed_ns / 1e9), ranks=(0,), lanes="pthread_id", clock=clock
    )
    lanes = lanes_table(rows) if loader.one_clock else None
    return build_capture(folder, files=FILES, ops=job.recorded.ops, spans=job.recorded.spans, info=info, lanes=lanes)


def _ran(loader: Loader, storage: Storage) -> _Job:
    job = _Job(loader, storage)
    job.run()
    return job
