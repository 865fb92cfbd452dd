"""A small training application that really reads: threads fill a buffer, ranks compute and meet. It records itself.

One process, a thread for each training rank and each reader; reads are `os.pread`, compute is sleep. What it did
becomes a capture with its spans, as Darshan and a profiler would have seen it.

    python -m benchmarks.training_application CONFIG.json     (prints the seconds that training took)
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

import numpy as np

from dxt_replay.traces.schema import (
    APIS,
    COUNTERS,
    FILES_SCHEMA,
    FORMATS,
    OPS_SCHEMA,
    READ,
    SPAN_KINDS,
    SPANS_SCHEMA,
    TRACED,
    CaptureInfo,
    Job,
    table_from_columns,
)
from dxt_replay.traces.store.writer import (
    OpsWriter,
    create_capture,
    write_capture_info,
    write_files,
    write_spans,
)

READ_BYTES = 262_144
START_NS = 20_000_000
"""Time from the start to the first step, ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """`depth`: batches in the buffer, 0 for reads in the training thread. Times in ns. `seed` draws the offsets."""

    steps: int = 60
    ranks: int = 1
    depth: int = 0
    readers: int = 1
    reads_per_batch: int = 3
    decode_ns: int = 500_000
    compute_ns: int = 15_000_000
    jitter: float = 0.2
    seed: int = 1

    @property
    def blocks(self) -> int:
        """Blocks of READ_BYTES of its file: each is read once."""
        return self.ranks * self.steps * self.reads_per_batch


@dataclass(slots=True)
class _Log:
    """Rows (rank, lane, offset, start, end) and (rank, kind, step, start, end), from all threads."""

    reads: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    spans: list[tuple[int, str, int, int, int]] = field(default_factory=list)


class _Rank:
    def __init__(self, training: Training, rank: int, path: Path, log: _Log, meeting: threading.Barrier) -> None:
        self._training = training
        self._rank = rank
        self._log = log
        self._meeting = meeting
        random = np.random.default_rng([training.seed, rank])
        self._compute = training.compute_ns * random.lognormal(0.0, training.jitter, training.steps)
        blocks = np.random.default_rng(training.seed).permutation(training.blocks)
        self._blocks = blocks[rank :: training.ranks].reshape(training.steps, -1)
        self._file = os.open(path, os.O_RDONLY)
        self._taken = 0
        self._room = threading.Condition()
        self._buffers: list[Queue[int]] = [Queue() for _ in range(training.readers)]

    def train(self) -> None:
        """The training thread."""
        training = self._training
        if training.depth:
            for reader in range(training.readers):
                threading.Thread(target=self._produce, args=(reader,), daemon=True).start()
        for step in range(training.steps):
            begun = time.monotonic_ns()
            if training.depth:
                self._buffers[step % training.readers].get()
            else:
                self._batch(step, 0)
            taken = time.monotonic_ns()
            with self._room:
                self._taken += 1
                self._room.notify_all()
            time.sleep(self._compute[step] / 1e9)
            computed = time.monotonic_ns()
            self._log.spans.append((self._rank, "input_wait", step, begun, taken))
            self._log.spans.append((self._rank, "compute", step, taken, computed))
            if training.ranks > 1:
                self._meeting.wait()
                self._log.spans.append((self._rank, "collective", step, computed, time.monotonic_ns()))
            self._log.spans.append((self._rank, "step", step, begun, time.monotonic_ns()))

    def _produce(self, reader: int) -> None:
        for step in range(reader, self._training.steps, self._training.readers):
            with (
                self._room
            ):  # in the order of the steps: a reader that is ahead must not take the place of the next batch
                while step - self._taken >= self._training.depth:
                    self._room.wait()
            self._batch(step, reader)
            self._buffers[reader].put(step)

    def _batch(self, step: int, lane: int) -> None:
        for block in self._blocks[step].tolist():
            start = time.monotonic_ns()
            os.pread(self._file, READ_BYTES, block * READ_BYTES)
            self._log.reads.append((self._rank, lane, block * READ_BYTES, start, time.monotonic_ns()))
        time.sleep(self._training.decode_ns / 1e9)


def train(training: Training, data: Path, capture: Path) -> float:
    """Run it on `data` (as large as its blocks) and write the capture; seconds from the start to the end."""
    log, meeting = _Log(), threading.Barrier(training.ranks)
    zero = time.monotonic_ns()
    time.sleep(START_NS / 1e9)
    ranks = [_Rank(training, rank, data, log, meeting) for rank in range(training.ranks)]
    threads = [threading.Thread(target=rank.train) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_ns = max(span[4] for span in log.spans) - zero
    _write(training, log, zero, data, capture, elapsed_ns)
    return elapsed_ns / 1e9


def _write(training: Training, log: _Log, zero: int, data: Path, capture: Path, elapsed_ns: int) -> None:
    reads = np.array(sorted(log.reads, key=lambda row: (row[0], row[3])), dtype=np.int64)
    create_capture(capture)
    with OpsWriter(capture) as writer:
        writer.write(
            table_from_columns(
                {
                    "rank": reads[:, 0].astype(np.int32),
                    "lane": reads[:, 1].astype(np.int32),
                    "op": np.full(len(reads), READ, dtype=np.int8),
                    "api": np.full(len(reads), APIS.index("POSIX"), dtype=np.int8),
                    "origin": np.full(len(reads), TRACED, dtype=np.int8),
                    "file_id": np.zeros(len(reads), dtype=np.int32),
                    "step": np.full(len(reads), -1, dtype=np.int32),
                    "offset": reads[:, 2],
                    "length": np.full(len(reads), READ_BYTES),
                    "start_ns": reads[:, 3] - zero,
                    "end_ns": reads[:, 4] - zero,
                },
                OPS_SCHEMA,
            )
        )
    unknown: dict[str, object] = {name: [None] for name in COUNTERS}
    files = {
        "file_id": [0],
        "record_id": [1],
        "path": ["/data/train.bin"],
        "size": [data.stat().st_size],
        "format": np.array([FORMATS.index("other")], dtype=np.int8),
        "mount": ["/"],
        "fs_type": [""],
    }
    write_files(capture, table_from_columns({**unknown, **files}, FILES_SCHEMA))
    spans = sorted(log.spans, key=lambda row: (row[0], row[3], -row[4]))
    columns = {
        "rank": np.array([row[0] for row in spans], dtype=np.int32),
        "thread": np.array([row[0] + 1 for row in spans]),
        "kind": np.array([SPAN_KINDS.index(row[1]) for row in spans], dtype=np.int8),
        "name": [row[1] for row in spans],
        "step": np.array([row[2] for row in spans], dtype=np.int32),
        "start_ns": np.array([row[3] - zero for row in spans]),
        "end_ns": np.array([row[4] - zero for row in spans]),
    }
    write_spans(capture, table_from_columns(columns, SPANS_SCHEMA))
    job = Job(nprocs=training.ranks, run_time_s=elapsed_ns / 1e9, end_ns=elapsed_ns)
    lanes = "pthread_id"
    write_capture_info(capture, CaptureInfo(job=job, ranks=tuple(range(training.ranks)), lanes=lanes))


def main(config: str) -> int:
    """Train as `config` says: JSON with `training`, `data`, `capture` and `cold` (drop the page cache first)."""
    chosen = json.loads(Path(config).read_text(encoding="utf-8"))
    data = Path(chosen["data"])
    if chosen["cold"]:
        descriptor = os.open(data, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    print(train(Training(**chosen["training"]), data, Path(chosen["capture"])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
