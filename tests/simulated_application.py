"""A training application whose times follow from its parts: the truth that predictions are held against.

Events are computed, nothing is measured: reader threads fill a bounded buffer of `depth` batches (0: the training
thread reads by itself), each step takes a batch, computes, meets the other ranks and now and then writes a checkpoint.
Run the same application on two storages: one gives the capture, the other the truth to be predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.capture_builder import Op, Span

US, MS = 1_000, 1_000_000
TRAINING_THREAD = 77
READ_BYTES = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """What an operation takes: a latency, and its bytes at a rate (bytes per ns; both may depend on nothing else)."""

    latency_ns: int
    bytes_per_ns: float = 2.0

    def takes_ns(self, length: int) -> int:
        """Duration of one operation."""
        return self.latency_ns + round(length / self.bytes_per_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """What is trained. `depth` batches are buffered at most; 0: reads in the training thread.

    `think_ns`: before each read of a batch but the first, in its thread; `decode_ns`: after the last one, before the
    batch is in the buffer. `load_reads`: of another file, whole, before the loop. `checkpoint_every` steps rank 0
    writes `checkpoint_writes` times 1 MiB. Compute varies by `jitter` (log-normal sigma), on each rank by itself.
    `traced`: the profiler shows the readers too, a span a batch.
    """

    steps: int = 80
    ranks: int = 1
    depth: int = 0
    readers: int = 1
    reads_per_batch: int = 3
    think_ns: int = 200 * US
    decode_ns: int = 300 * US
    compute_ns: int = 8 * MS
    jitter: float = 0.1
    collective_ns: int = 0
    load_reads: int = 0
    checkpoint_every: int = 0
    checkpoint_writes: int = 4
    seed: int = 1
    traced: bool = False


@dataclass(slots=True)
class Recorded:
    """What a run leaves: operations and spans as for `build_capture`, and when it ended."""

    ops: list[Op] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    elapsed_ns: int = 0


def run(application: Application, storage: Storage) -> Recorded:
    """The application on a storage, from time 0."""
    recorded = Recorded()
    ranks = [_Rank(application, storage, rank, recorded) for rank in range(application.ranks)]
    for step in range(application.steps):
        arrivals = [rank.step_until_collective(step) for rank in ranks]
        leaves = max(arrivals) + application.collective_ns
        for rank, arrival in zip(ranks, arrivals, strict=True):
            rank.finish_step(step, arrival, leaves)
    recorded.elapsed_ns = max(rank.now for rank in ranks)
    return recorded


class _Rank:
    def __init__(self, application: Application, storage: Storage, rank: int, recorded: Recorded) -> None:
        self._application = application
        self._storage = storage
        self._rank = rank
        self._recorded = recorded
        random = np.random.default_rng([application.seed, rank])
        self._compute = np.rint(
            application.compute_ns * random.lognormal(0.0, application.jitter, application.steps)
        ).astype(int)
        self.now = 0
        self._begun = 0
        self._takes: list[int] = []
        self._ready: dict[int, int] = {}
        for number in range(application.load_reads):
            self._operation("read", 1, number * READ_BYTES, READ_BYTES, lane=0)
            self.now += application.think_ns
        self.now += 5 * MS
        self._entry = self.now
        self._free = [self.now] * max(application.readers, 1)

    def step_until_collective(self, step: int) -> int:
        """Take the batch and compute; when this rank arrives at the collective."""
        self._begun = self.now
        if self._application.depth:
            ready = self._produced(step)
            taken = max(self.now + 20 * US, ready)
        else:
            self.now += 10 * US
            self._batch(step, lane=0)
            taken = self.now
        self._span("input_wait", self._begun, taken, step)
        self._takes.append(taken)
        self.now = taken + int(self._compute[step])
        self._span("compute", taken, self.now, step)
        return self.now

    def finish_step(self, step: int, arrival: int, leaves: int) -> None:
        """Leave the collective, write the checkpoint if there is one."""
        if self._application.collective_ns:
            self._span("collective", arrival, leaves, step)
            self.now = leaves
        every = self._application.checkpoint_every
        if every and self._rank == 0 and step % every == every - 1:
            begun = self.now
            self.now += 400 * US
            for number in range(self._application.checkpoint_writes):
                self._operation("write", 2, number << 20, 1 << 20, lane=0 if self._application.depth == 0 else 9)
                self.now += 50 * US
            self._span("checkpoint", begun, self.now, step)
        self._span("step", self._begun, self.now, step)

    def _produced(self, step: int) -> int:
        """When the buffer holds the batch of `step`; its readers never run further ahead than the buffer is deep."""
        application, after = self._application, self.now
        for batch in range(len(self._ready), step + 1):
            lane = batch % application.readers
            room = self._takes[batch - application.depth] if batch >= application.depth else self._entry
            self.now = max(self._free[lane], room)
            begun = self.now
            self._batch(batch, lane)
            if application.traced:
                self._span("pipeline", begun, self.now, -1)
            self._ready[batch] = self._free[lane] = self.now
        self.now = after
        return self._ready[step]

    def _batch(self, batch: int, lane: int) -> None:
        """The reads of a batch, then its decoding, in the thread that `now` stands for."""
        reads = self._application.reads_per_batch
        for number in range(reads):
            if number:
                self.now += self._application.think_ns
            self._operation("read", 0, (batch * reads + number) * READ_BYTES, READ_BYTES, lane=lane)
        self.now += self._application.decode_ns

    def _operation(self, op: str, file_id: int, offset: int, length: int, *, lane: int) -> None:
        end = self.now + self._storage.takes_ns(length)
        columns = {"offset": offset, "length": length, "start_ns": self.now, "end_ns": end}
        self._recorded.ops.append(Op(op, file_id, rank=self._rank, lane=lane, **columns))
        self.now = end

    def _span(self, kind: str, start_ns: int, end_ns: int, step: int) -> None:
        self._recorded.spans.append(
            Span(kind, start_ns, end_ns, name=kind, rank=self._rank, thread=TRAINING_THREAD, step=step)
        )


FILES = ["/data/train", "/data/table", "/ckpt/model"]
"""The files of every application, for `build_capture`."""
