"""What the rows of the table work on: written into an empty folder, at three sizes each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import dxt_replay
from benchmarks.large_log import write_large_log
from benchmarks.scale_table.captures import RANKS, even_capture, files_capture, mixed_capture

OPERATIONS = (1_000_000, 3_000_000, 10_000_000)
JOB_RANKS = (1_000, 3_000, 10_000)
READS_OF_RANK = 300
WIDE_RANKS, WIDE_FILES = 512, 20_000
FILE_BYTES = 16 << 10
TIMED_READS, TIMED_GAP_NS = 200, 10_000_000
EVENTS_OF_STEP = 250
"""Events of a profiled step, as in a small model on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What the rows of one kind work on.

    make: writes it for a size into a folder; returns the number of units written.
    unit: what the cost is divided by.
    sizes: ascending.
    least: smallest size that makes sense.
    in_memory: whether it is written to tmpfs, unless a folder is given: what a new file costs on a disk depends on the
        files that were removed before.
    """

    make: Callable[[Path, int], int]
    unit: str
    sizes: tuple[int, ...]
    least: int = 100
    in_memory: bool = False


def _log(folder: Path, operations: int, ranks: int = RANKS) -> int:
    return write_large_log(folder / "job.darshan", max(operations, 4 * ranks), ranks)


def _ranks(folder: Path, ranks: int) -> int:
    _log(folder, ranks * READS_OF_RANK, ranks)
    return ranks


def _open(folder: Path, ranks: int) -> int:
    even_capture(folder / "job.capture", ranks, 10, 10_000)
    return ranks


def _timed(folder: Path, ranks: int) -> int:
    made = even_capture(folder / "job.capture", ranks, TIMED_READS, TIMED_GAP_NS)
    (folder / "twin").mkdir()
    dxt_replay.stage(folder / "job.capture", folder / "twin", sparse=True)
    return made


def _one_rank(folder: Path, operations: int) -> int:
    _log(folder, operations, 1)
    made = even_capture(folder / "job.capture", 1, operations, 2_000)
    (folder / "twin").mkdir()
    dxt_replay.stage(folder / "job.capture", folder / "twin", sparse=True)
    return made


def _training(folder: Path, files: int) -> int:
    changes = {"train.epochs": 1, "dataset.num_files_train": files}
    return dxt_replay.generate("resnet50_h100", 16, folder / "job.capture", overrides=changes).generated.operations


def _archive(folder: Path, jobs: int) -> int:
    for number in range(jobs):
        place = folder / "logs" / f"{number:05d}"
        place.mkdir(parents=True)
        write_large_log(place / "job.darshan", 4_000, 4)
    return jobs


def _simulated(folder: Path, ranks: int) -> int:
    sample = dxt_replay.sample("imagenet")
    dxt_replay.merge(sample.log, folder / "job.capture", profiles=sample.profiles)
    return ranks


def _rows(folder: Path, rows: int) -> int:
    generator = np.random.default_rng(3)
    columns = [generator.integers(0, most, rows) for most in (512, 20_000, 2)]
    np.save(folder / "rows.npy", np.stack(columns))
    return rows


def _text(folder: Path, segments: int) -> int:
    """What darshan-dxt-parser prints, a record of 10,000 segments after the other."""
    generator = np.random.default_rng(7)
    start = np.cumsum(generator.random(segments) * 1e-3)
    end = start + generator.random(segments) * 1e-3
    with open(folder / "segments.txt", "w", encoding="ascii") as text:
        for number in range(segments):
            if number % 10_000 == 0:
                text.write(f"# DXT, file_id: {number} file_name: /data/part-{number}.tfrecord\n")
            offset = 4096 * number
            text.write(f" X_POSIX {number % 8} read {number} {offset} 4096 {start[number]:.4f} {end[number]:.4f}\n")
    return segments


def _profile(folder: Path, events: int) -> int:
    """A profile as PyTorch's profiler prints it."""
    with open(folder / "job.pt.trace.json", "w", encoding="utf-8") as file:
        file.write('{\n  "schemaVersion": 1,\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n')
        file.write(",\n".join(map(_event, range(events))) + '\n  ],"traceName": "/tmp/tmpabc.json" }')
    return events


def _event(i: int) -> str:
    category, name = "cpu_op", f"aten::operator_{i % 90}"
    if i % EVENTS_OF_STEP == 0:
        category, name = "user_annotation", f"ProfilerStep#{i // EVENTS_OF_STEP}"
    elif i % 3 == 0:
        name = f"autograd::engine::evaluate_function: Backward{i % 40}"
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 4711, "tid": 4711,\n'
        f'    "ts": {4452070060216 + 20 * i}.{i % 1000:03}, "dur": {15 + i % 4}.250,\n'
        f'    "args": {{\n      "External id": {i},"Record function id": 0, "Ev Idx": {i}\n    }}\n  }}'
    )


INPUTS = {
    "job": Input(
        make=lambda folder, size: mixed_capture(folder / "job.capture", size), unit="operation", sizes=OPERATIONS
    ),
    "log": Input(make=_log, unit="operation", sizes=OPERATIONS),
    "log without threads": Input(
        make=lambda folder, size: write_large_log(folder / "job.darshan", max(size, 4 * RANKS), RANKS, 1),
        unit="operation",
        sizes=OPERATIONS[:1],
    ),
    "text": Input(make=_text, unit="operation", sizes=(400_000,)),
    "one rank": Input(make=_one_rank, unit="operation", sizes=OPERATIONS),
    "ranks": Input(make=_ranks, unit="rank", sizes=JOB_RANKS, least=4),
    "wide": Input(
        make=lambda folder, size: mixed_capture(folder / "job.capture", size, WIDE_RANKS, WIDE_FILES),
        unit="operation",
        sizes=(250_000, 750_000, 2_500_000),
        least=WIDE_RANKS,
    ),
    "open": Input(make=_open, unit="rank", sizes=(10_000, 30_000, 100_000)),
    "small": Input(make=_log, unit="operation", sizes=(100, 1_000, 10_000)),
    "archive": Input(make=_archive, unit="log", sizes=(10, 30, 100), least=2),
    "files": Input(
        make=lambda folder, size: files_capture(folder / "job.capture", size, FILE_BYTES),
        unit="file",
        sizes=(3_000, 10_000, 30_000),
        least=10,
        in_memory=True,
    ),
    "timed": Input(make=_timed, unit="operation", sizes=(64, 256, 1_024), least=2),
    "training": Input(make=_training, unit="operation", sizes=(1_824, 5_472, 18_240), least=16),
    "simulated": Input(make=_simulated, unit="item", sizes=(512, 2_048, 8_192), least=4),
    "profile": Input(make=_profile, unit="event", sizes=(50_000, 150_000, 500_000)),
    "rows": Input(make=_rows, unit="row", sizes=OPERATIONS),
}
"""By name, in the order in which the rows are measured."""


def archive_of(source: Path) -> Input:
    """The logs below `source` instead of small ones; the size is the number of copies."""

    def copies(folder: Path, count: int) -> int:
        for copy in range(count):
            shutil.copytree(source, folder / "logs" / f"{copy:05d}")
        return sum(1 for _ in (folder / "logs").rglob("*.darshan"))

    return Input(make=copies, unit="log", sizes=(1, 3, 10), least=1)
