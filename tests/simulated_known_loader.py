"""A job whose capture says what each operation waits for, simulated from its parts: the truth for known dependencies.

Each rank reads its batches by a DataLoader: worker j mod readers makes batch j of a pass, and may begin with it when
batch j - prefetch * readers was fetched; the first ones begin with the first fetch of the pass. Without readers the
training thread reads. All ranks meet after each step; rank 0 then writes checkpoints. Evaluations have own workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, Span, build_capture
from tests.simulated_application import MS, READ_BYTES, US, Storage

FILES = ["/data/train", "/data/valid", "/checkpoints/model.pt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """Parameters of the job. Times in ns. `evaluation_steps`, `checkpoint_every`: 0 for none."""

    ranks: int = 2
    epochs: int = 2
    steps: int = 7
    readers: int = 4
    prefetch: int = 2
    reads: int = 3
    compute_ns: int = 8 * MS
    think_ns: int = 200 * US
    ready_ns: int = 900 * US
    cost_ns: int = 300 * US
    evaluation_steps: int = 3
    checkpoint_every: int = 5
    seed: int = 1


@dataclass(slots=True)
class _Rank:
    rank: int
    job: KnownJob
    lasts: Callable[[str, int], int]
    random: np.random.Generator
    now: int = 1 * MS
    step: int = 0
    fetches: int = 0
    ops: list[Op] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    free: dict[int, int] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)

    def issue(self, op: str, file_id: int, lane: int, start_ns: int, length: int = 0, **known: int | None) -> int:
        """An operation; when it ends."""
        end = start_ns + self.lasts(op, length)
        self.ops.append(
            Op(op, file_id, 0, length, start_ns, end, rank=self.rank, lane=lane, origin="generated", **known)
        )
        return end

    def make(self, lane: int, fetch: int, follows: int, moment_ns: int, file_id: int) -> int:
        """A batch in a lane that may begin at a moment, 2 n (begin of fetch n) or 2 n + 1 (end); when it is ready."""
        now = max(self.free.get(lane, 0), moment_ns)
        known = {"feeds": fetch, "follows": follows // 2, "follows_end": bool(follows % 2)}
        now = self.issue("open", file_id, lane, now, **known)
        for number in range(self.job.reads):
            last = number == self.job.reads - 1
            now = self.issue(
                "read", file_id, lane, now + self.job.think_ns, READ_BYTES,
                **known, ready_ns=self.job.ready_ns if last else None,
            )  # fmt: skip
        self.free[lane] = now + self.job.ready_ns
        return self.free[lane]

    def fetch(self, number: int, count: int, first_lane: int, file_id: int) -> None:
        """Batch `number` of a pass of `count`, fetched by the training thread."""
        job, begin, own = self.job, self.now, self.fetches
        ahead = job.prefetch * job.readers

        def start(batch: int, follows: int) -> None:
            lane, fetched = first_lane + batch % job.readers, own - number + batch
            self.ready[fetched] = self.make(lane, fetched, follows, self.now, file_id)

        if not job.readers:
            self.ready[own] = self.make(0, own, 2 * own, begin, file_id)
        elif number == 0:
            for batch in range(min(ahead, count)):
                start(batch, 2 * own)
        self.now = max(begin + 1, self.ready[own])
        self.fetches += 1
        self.span("input_wait", begin, "input_wait" if job.readers else "next_batch")
        if job.readers and number + ahead < count:
            start(number + ahead, 2 * own + 1)

    def compute(self) -> None:
        begin = self.now
        self.now += round(self.job.compute_ns * self.random.lognormal(0.0, 0.4))
        self.span("compute", begin)

    def checkpoint(self) -> None:
        """Three writes of the training thread."""
        begin = self.now
        self.now = self.issue("open", 2, 0, self.now + 10 * US)
        for _ in range(3):
            self.now = self.issue("write", 2, 0, self.now + 50 * US, READ_BYTES)
        self.now = self.issue("close", 2, 0, self.now) + 1 * US
        self.span("checkpoint", begin)

    def span(self, kind: str, begin_ns: int, name: str = "") -> None:
        self.spans.append(Span(kind, begin_ns, self.now, name=name or kind, rank=self.rank, thread=0, step=self.step))

    def step_done(self, begin_ns: int) -> None:
        self.span("step", begin_ns)
        self.step += 1
        self.now += 1 * US


@dataclass(slots=True)
class KnownRun:
    """What the job did: operations and spans of all ranks."""

    ops: list[Op] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def capture(self, folder: Path, job: KnownJob) -> Capture:
        """The run as a capture whose dependencies are known."""
        info = CaptureInfo(
            job=Job(nprocs=job.ranks, run_time_s=max(span.end_ns for span in self.spans) / 1e9),
            ranks=tuple(range(job.ranks)),
            lanes="recorded",
            dependencies="known",
        )
        return build_capture(folder, files=FILES, ops=self.ops, spans=self.spans, info=info)


def run(job: KnownJob, storage: Storage) -> KnownRun:
    """The job on a storage that serves each lane as if it were alone; what moves no data takes its latency."""

    def lasts(op: str, length: int) -> int:
        return storage.takes_ns(length) if length else storage.latency_ns

    ranks = [_Rank(rank, job, lasts, np.random.default_rng(job.seed + rank)) for rank in range(job.ranks)]
    for rank in ranks:
        rank.now = rank.issue("stat", 0, 0, rank.issue("open", 0, 0, rank.now)) + (2 + rank.rank) * MS
    for _ in range(job.epochs):
        for number in range(job.steps):
            _step(job, ranks, number)
        for rank in ranks:
            for number in range(job.evaluation_steps):
                begin = rank.now
                rank.fetch(number, job.evaluation_steps, 1 + job.readers, 1)
                rank.compute()
                rank.step_done(begin)
    for rank in ranks:
        rank.issue("write", 2, 0, rank.now + 1 * MS, 100)
    return KnownRun(
        ops=[op for rank in ranks for op in rank.ops], spans=[span for rank in ranks for span in rank.spans]
    )


def _step(job: KnownJob, ranks: list[_Rank], number: int) -> None:
    begins = []
    for rank in ranks:
        begins.append(rank.now)
        rank.fetch(number, job.steps, 1, 0)
        rank.compute()
    met = max(rank.now for rank in ranks)
    for rank, begin in zip(ranks, begins, strict=True):
        arrived, rank.now = rank.now, met + job.cost_ns
        rank.span("collective", arrived)
        if rank.rank == 0 and job.checkpoint_every and (number + 1) % job.checkpoint_every == 0:
            rank.now += 1 * US
            rank.checkpoint()
        rank.step_done(begin)
