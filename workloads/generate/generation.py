"""A workload description to a capture: rank by rank, in bounded memory, on as many processes as wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import READ, WRITE, CaptureInfo, Coverage, Job, Source, codes
from dxt_replay.traces.store.spans_writer import SpansWriter
from dxt_replay.traces.store.writer import (
    OpsWriter,
    begin_capture,
    check_capture_output,
    discard_capture,
    publish_capture,
    write_capture_info,
    write_files,
    write_hdf5,
)
from dxt_replay.traces.units import ns_to_seconds
from dxt_replay.traces.version import VERSION
from dxt_replay.traces.workers.workers import ALONE, Workers
from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.generate.assumed_device import DEFAULT_DEVICE, AssumedDevice, parse_device
from dxt_replay.workloads.generate.benchmark_facts import benchmark_facts
from dxt_replay.workloads.generate.loaders import Loaders
from dxt_replay.workloads.generate.rank_rows import RankRows, timelines
from dxt_replay.workloads.generate.run_clock import RunClock
from dxt_replay.workloads.generate.run_files import run_files
from dxt_replay.workloads.generate.run_plan import Pass, run_plan

BLOCK_BYTES = 4096
"""Block size of the file system that is assumed: that of ext4 and XFS."""

CHUNKS = 32
"""Parts into which many ranks are divided, whatever the number of processes: the files must not depend on it."""

CHUNK_NUMBERS = 1 << 23
"""Numbers that the times of the ranks of a part are at most, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a generated run follows from: the workload, the number of ranks, the device, the seed of the draws, and the
    block size of the file system in bytes."""

    workload: Workload
    ranks: int
    device: AssumedDevice
    seed: int
    block_bytes: int = BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What was generated. bytes_read, bytes_written, operations: of all ranks. steps: of each rank."""

    ranks: int
    steps: int
    files: int
    operations: int
    bytes_read: int
    bytes_written: int
    elapsed_s: float
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "warnings": list(self.warnings)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a part of the ranks came to; `spans` of its ranks."""

    operations: int
    bytes_read: int
    bytes_written: int
    spans: pa.Table


def generate(
    workload: Workload,
    ranks: int,
    output: Path,
    *,
    seed: int = 0,
    device: str = DEFAULT_DEVICE,
    workers: Workers = ALONE,
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    notes: Sequence[str] = (),
) -> Generated:
    """Write the capture of a run of `workload` on `ranks` ranks, timed on `device` (see `parse_device`).

    workers: who generates; the capture does not depend on it. on_progress: given ranks done, and all ranks.
    notes: on what of the description is not followed; the capture keeps them as warnings.
    Raises: UsageError for values that contradict each other; TargetError for `output`.
    """
    if ranks < 1:
        raise UsageError(f"--ranks {ranks}: a run has at least 1 rank")
    setting = Setting(workload=workload, ranks=ranks, device=parse_device(device), seed=seed)
    check_capture_output(output, force=force)
    loaders = loaders_of(setting)
    meetings_ns, elapsed_ns = meeting_times(setting)
    working = begin_capture(output, force=force)
    try:
        found = _write(setting, meetings_ns, working, workers, on_progress)
        write_files(working, loaders.files.table())
        write_hdf5(working, loaders.files.hdf5_table())
        generated = Generated(
            ranks=ranks,
            steps=loaders.files.plan.steps,
            files=loaders.files.count,
            operations=found.operations,
            bytes_read=found.bytes_read,
            bytes_written=found.bytes_written,
            elapsed_s=ns_to_seconds(elapsed_ns),
            warnings=tuple(_listing(workload, ranks)),
        )
        write_capture_info(working, _info(setting, generated, notes))
        publish_capture(working, output, force=force)
    except BaseException:
        discard_capture(working)
        raise
    return generated


@lru_cache(maxsize=1)
def loaders_of(setting: Setting) -> Loaders:
    """The readers and files of a run, made once in each process. Raises: UsageError as `run_plan` and `run_files`."""
    plan = run_plan(setting.workload, setting.ranks)
    return Loaders(
        workload=setting.workload,
        files=run_files(setting.workload, plan, setting.ranks, setting.block_bytes),
        device=setting.device,
        seed=setting.seed,
        block_bytes=setting.block_bytes,
    )


def meeting_times(setting: Setting) -> tuple[np.ndarray, int]:
    """When the ranks left each of their meetings, int64 ns, and when the last rank ended.

    Of ranks that do everything at the same times one stands for all.
    """
    loaders = loaders_of(setting)
    _, first = np.unique(loaders.alike(np.arange(setting.ranks)), return_index=True)
    clock = RunClock(loaders.files.plan, first, loaders, loaders)
    elapsed = clock.run()
    return np.array(clock.meetings_ns, dtype=np.int64), elapsed


def _chunks(setting: Setting) -> list[tuple[int, int]]:
    """First and last + 1 of the ranks of each part."""
    loaders = loaders_of(setting)
    passes = [segment for segment in loaders.files.plan.segments if isinstance(segment, Pass)]
    numbers = sum(each.fetches * (5 + 7 * loaders.of(each).piece_count) for each in passes)
    size = max(1, min(-(-setting.ranks // CHUNKS), CHUNK_NUMBERS // max(numbers, 1)))
    return [(first, min(first + size, setting.ranks)) for first in range(0, setting.ranks, size)]


def _write(
    setting: Setting,
    meetings_ns: np.ndarray,
    working: Path,
    workers: Workers,
    on_progress: Callable[[int, int], None] | None,
) -> _Part:
    """Write operations and spans of all ranks; what they came to."""
    total = _Part(operations=0, bytes_read=0, bytes_written=0, spans=None)
    chunks = _chunks(setting)
    work = _RankWriter(setting=setting, meetings_ns=meetings_ns, working=working)
    with SpansWriter(working) as spans, workers.results(work, chunks, operations=_estimate(setting)) as parts:
        for (_, last), part in zip(chunks, parts, strict=True):
            spans.write(part.spans)
            total = _Part(
                operations=total.operations + part.operations,
                bytes_read=total.bytes_read + part.bytes_read,
                bytes_written=total.bytes_written + part.bytes_written,
                spans=None,
            )
            if on_progress is not None:
                on_progress(last, setting.ranks)
    return total


def _estimate(setting: Setting) -> int:
    """About how many operations the run has."""
    loaders = loaders_of(setting)
    passes = [segment for segment in loaders.files.plan.segments if isinstance(segment, Pass)]
    return setting.ranks * sum(each.fetches * loaders.of(each).piece_count for each in passes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RankWriter:
    """Writes the operations of some ranks, which are given by the first and the last + 1."""

    setting: Setting
    meetings_ns: np.ndarray
    working: Path

    def __call__(self, ranks: tuple[int, int]) -> _Part:
        return write_ranks(self.setting, self.meetings_ns, self.working, *ranks)


def write_ranks(setting: Setting, meetings_ns: np.ndarray, working: Path, first: int, last: int) -> _Part:
    """Write the operations of the ranks first to last - 1 into `working`, as parts of their own."""
    loaders = loaders_of(setting)
    segments = loaders.files.plan.segments
    clock = RunClock(loaders.files.plan, np.arange(first, last), loaders, loaders, meetings_ns=meetings_ns)
    times = list(clock.segments())
    spans, moved = [], np.zeros(2, dtype=np.int64)
    with OpsWriter(working) as writer:
        for rank, timeline in zip(range(first, last), timelines(segments, times, last - first), strict=True):
            rows = RankRows(loaders, rank, timeline)
            for table in rows.operations():
                op, length = codes(table, "op"), table["length"].to_numpy()
                moved += [int(length[op == code].sum()) for code in (READ, WRITE)]
                writer.write(table)
            spans.append(rows.spans())
    return _Part(
        operations=writer.rows, bytes_read=int(moved[0]), bytes_written=int(moved[1]), spans=pa.concat_tables(spans)
    )


def _listing(workload: Workload, ranks: int) -> Iterator[str]:
    """A warning of the listing of the data folder, which no operation of a capture expresses."""
    data = workload.dataset
    if not workload.workflow.train:
        return
    sets = [data.num_files_train, data.num_files_eval * workload.workflow.evaluation]
    who, files = f"each of {ranks:,} ranks lists", sum(sets)
    if workload.reading == "v3.0":
        who = "rank 0 lists"
        if data.skip_listing:
            who, files = "rank 0 looks for", sum(_looked_at(each, data.listing_validation_interval) for each in sets)
    if files:
        yield f"the listing of the data folder is not part of the capture: {who} {files:,} files before the first step"


def _looked_at(files: int, interval: int) -> int:
    """Files that are looked at in place of a listing: the first, the last and each `interval`-th; none for 0."""
    return len({0, files - 1, *range(0, files, interval)}) if files and interval else 0


def _info(setting: Setting, generated: Generated, notes: Sequence[str]) -> CaptureInfo:
    workload = setting.workload
    source, facts = workload.source, benchmark_facts(workload, loaders_of(setting).files.plan)
    return CaptureInfo(
        job=Job(
            nprocs=setting.ranks,
            run_time_s=generated.elapsed_s,
            exe="dlio_benchmark",
            metadata={} if facts is None else facts.as_metadata(),
        ),
        ranks=tuple(range(setting.ranks)),
        sources=(Source(name=source.name, sha256=source.sha256, kind="workload"),),
        coverage=Coverage(bytes=1.0, operations=1.0),
        lanes="recorded",
        dependencies="known",
        warnings=(*notes, *generated.warnings),
        made_by={
            "program": "dxt-replay",
            "version": VERSION,
            "command": "generate",
            "operations_stored": generated.operations,
            "workload": source.name,
            "overrides": list(source.overrides),
            "reading": workload.reading,
            "seed": setting.seed,
            "device": str(setting.device),
            "block_bytes": setting.block_bytes,
        },
    )
