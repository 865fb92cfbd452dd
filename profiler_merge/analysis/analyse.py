"""All analyses of a capture in one pass over its op stream, and the kind of program that it shows: the input of reports
and findings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.analysis.collect import Begin, collect
from dxt_replay.profiler_merge.analysis.loop import Overlap, OverlapCollector
from dxt_replay.profiler_merge.analysis.patterns import PatternCollector, Patterns
from dxt_replay.profiler_merge.analysis.summary import Summary, SummaryCollector, with_loop
from dxt_replay.traces.files import is_recorder_file
from dxt_replay.traces.measures.span_times import evaluations_by_rank, whole_steps
from dxt_replay.traces.records import BenchmarkRun, CacheRecord, benchmark_run, replay_record
from dxt_replay.traces.schema import READ, TRACED, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import ALONE, Workers

LUSTRE = "lustre"


class Framework(Enum):
    """The library that runs the training loop."""

    TENSORFLOW = "TensorFlow"
    PYTORCH = "PyTorch"
    JAX = "JAX"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarts:
    """`at_once`: most workers of a rank that read at the same time.
    `starts`: how often workers began after all earlier ones had done their last read: 1 if they serve all epochs.
    Workers of evaluations are left out."""

    at_once: int
    starts: int


def worker_starts(capture: Capture) -> WorkerStarts | None:
    """The workers of the rank with most of them; None without workers that read in its training loop.

    A worker is a process with its own log, and so its own clock. Its life lasts from its first read to its last.
    """
    most = max(capture.info.clock, key=lambda clock: clock.worker, default=None)
    if most is None or not most.worker or most.rank not in capture.ranks:
        return None
    reads: dict[int, tuple[int, int]] = {}  # by lane, the start of its first traced read and the end of its last
    for batch in capture.operations(most.rank, columns=["lane", "op", "origin", "start_ns", "end_ns"]):
        mine = (codes(batch, "op") == READ) & (codes(batch, "origin") == TRACED)
        lane, start, end = (batch.column(name).to_numpy()[mine] for name in ("lane", "start_ns", "end_ns"))
        for each in np.unique(lane).tolist():
            first, last = int(start[lane == each].min()), int(end[lane == each].max())
            before = reads.get(each, (first, last))
            reads[each] = min(before[0], first), max(before[1], last)
    # The last lanes are those of the workers, behind those of their rank.
    lives = np.array(sorted(reads[lane] for lane in sorted(reads)[-most.worker :]), dtype=np.int64).reshape(-1, 2)
    first_ns, last_ns = lives.T
    steps = whole_steps(capture.spans)
    ends_ns = steps["end_ns"].to_numpy()[steps["rank"].to_numpy() == most.rank]
    training = first_ns < ends_ns.max(initial=0)
    if (evaluated := evaluations_by_rank(capture.spans).get(most.rank)) is not None:
        training &= evaluated.covered_within(first_ns, first_ns + 1) == 0
    first_ns, last_ns = first_ns[training], last_ns[training]
    if not len(first_ns):
        return None
    ended = np.searchsorted(np.sort(last_ns), first_ns)
    begun = np.arange(len(first_ns))
    return WorkerStarts(at_once=int((begun - ended).max()) + 1, starts=int((begun == ended).sum()))


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
    """The setting of a capture, from the names of its spans, else from its command and its files."""
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """The results of `summarise`, `overlap`, `patterns` and `setting_of` for one capture.

    saved_s: least and most time that infinitely fast storage would save the training, by its causal model; None where
    that is not known.
    """

    summary: Summary
    overlap: Overlap
    patterns: Patterns
    setting: Setting
    saved_s: tuple[float, float] | None = None


def analyse(
    capture: Capture, *, by: str | None = None, workers: Workers = ALONE, saved_s: tuple[float, float] | None = None
) -> Analysis:
    """All analyses in one pass. Arguments as of `summarise`; `saved_s` as of `Analysis`."""
    begins: list[Begin] = [partial(SummaryCollector, by=by), OverlapCollector, PatternCollector]
    summary, loop, patterns = collect(capture, begins, workers=workers)
    overlap = loop.overlap()
    return Analysis(
        summary=with_loop(summary.summary(), overlap, capture),
        overlap=overlap,
        patterns=patterns.patterns(),
        setting=setting_of(capture),
        saved_s=saved_s,
    )
