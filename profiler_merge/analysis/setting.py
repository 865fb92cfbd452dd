"""The kind of program that a capture shows: its framework, its file systems, and the profilers' own files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.analysis.worker_starts import WorkerStarts, worker_starts
from dxt_replay.traces.files import is_recorder_file
from dxt_replay.traces.records import BenchmarkRun, CacheRecord, benchmark_run, replay_record
from dxt_replay.traces.store.reader import Capture

LUSTRE = "lustre"


class Framework(Enum):
    """The library that runs the training loop."""

    TENSORFLOW = "TensorFlow"
    PYTORCH = "PyTorch"
    JAX = "JAX"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The setting of a program.

    framework: of the program.
    file_systems: of its files, by name, such as ext4.
    own_files: ids of files that belong to the profilers, not to the program.
    benchmark: the benchmark that it runs; None for other programs.
    cache: the page cache before a replay; None if it is not a replay.
    counted: what counters say of the requests (`counted_requests`), of a whole capture without a trace, with paths.
    workers: recorded processes of a PyTorch DataLoader, of the rank with most; None where none is known."""

    framework: Framework = Framework.UNKNOWN
    file_systems: frozenset[str] = field(default_factory=frozenset)
    own_files: frozenset[int] = field(default_factory=frozenset)
    benchmark: BenchmarkRun | None = None
    cache: CacheRecord | None = None
    workers: WorkerStarts | None = None
    counted: Mapping[str, Any] = field(default_factory=dict)


_BY_SPAN = (
    (re.compile(r"IteratorGetNext|ExecutorState|MapAndBatch|ParallelInterleave"), Framework.TENSORFLOW),
    (re.compile(r"ProfilerStep|DataLoader|Optimizer\.|aten::|gloo:|DistributedDataParallel"), Framework.PYTORCH),
    (re.compile(r"PjRt|pjit|jit_|TfrtCpu"), Framework.JAX),
)
_BY_NAME = (
    (re.compile(r"torchrun|torch|\.pth?$", re.MULTILINE), Framework.PYTORCH),
    (
        re.compile(r"tensorflow|\.tfrecords?(?:-\d|$)|saved_model\.pb$|\.data-\d+-of-\d+$", re.MULTILINE),
        Framework.TENSORFLOW,
    ),
    (re.compile(r"\bjax\b|orbax"), Framework.JAX),
)


def setting_of(capture: Capture) -> Setting:
    """The setting of a capture, from the names of its spans, else from its command and its files.

    Raises: CaptureError when a part cannot be read.
    """
    paths = capture.paths()
    spans = "\n".join(name for name in capture.spans["name"].unique().to_pylist() if name)
    named = "\n".join([capture.info.job.exe, *paths])
    found = next((framework for pattern, framework in _BY_SPAN if pattern.search(spans)), None)
    found = found or next((framework for pattern, framework in _BY_NAME if pattern.search(named)), Framework.UNKNOWN)
    record = replay_record(capture.info, capture.path / "capture.json")
    systems = capture.files["fs_type"].unique().to_pylist()
    return Setting(
        framework=found,
        file_systems=frozenset(name for name in systems if name),
        own_files=frozenset(np.flatnonzero([is_recorder_file(path) for path in paths]).tolist()),
        benchmark=benchmark_run(capture.info),
        cache=None if record is None else record.cache,
        workers=worker_starts(capture) if found is Framework.PYTORCH else None,
        counted={
            name: {**each, "files": tuple(paths[file] for file in each["files"])}
            for name, each in capture.info.made_by.get("counted_requests", {}).items()
            if capture.whole is capture
        },
    )
