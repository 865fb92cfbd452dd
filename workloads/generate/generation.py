"""Generates a capture from a workload description: rank by rank, in bounded memory, on any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import (
    LANES_SCHEMA,
    READ,
    ROLES,
    WRITE,
    CaptureInfo,
    Coverage,
    Job,
    Source,
    codes,
    table_from_columns,
)
from dxt_replay.traces.store.lanes import write_lanes, written_lanes
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
from dxt_replay.traces.workers import ALONE, Workers
from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.generate.assumed_device import DEFAULT_DEVICE, AssumedDevice, parse_device
from dxt_replay.workloads.generate.benchmark_facts import benchmark_facts
from dxt_replay.workloads.generate.loaders import Loaders
from dxt_replay.workloads.generate.rank_rows import RankRows, timelines
from dxt_replay.workloads.generate.run_clock import RunClock
from dxt_replay.workloads.generate.run_files import run_files
from dxt_replay.workloads.generate.run_plan import run_plan

BLOCK_BYTES = 4096
"""Assumed block size of the file system: that of ext4 and XFS."""

CHUNKS = 32
"""Parts into which many ranks are divided. It does not depend on the number of processes, so neither do the files."""

_Counts = np.ndarray
"""int64 (3,): operations, bytes read and bytes written of some ranks."""

CHUNK_NUMBERS = 1 << 23
"""About the largest number of time values of the ranks of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything that determines a generated run.

    workload; number of ranks; device; seed of the draws; block size of the file system in bytes."""

    workload: Workload
    ranks: int
    device: AssumedDevice
    seed: int
    block_bytes: int = BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The generated totals. bytes_read, bytes_written, operations: of all ranks. steps: of each rank."""

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

    workers: the processes that generate; the capture does not depend on them.
    on_progress: called with (ranks done, all ranks).
    notes: parts of the description that are not followed; the capture keeps them as warnings.
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
        operations, bytes_read, bytes_written = _write(setting, meetings_ns, working, workers, on_progress).tolist()
        write_files(working, loaders.files.table())
        write_hdf5(working, loaders.files.hdf5_table())
        generated = Generated(
            ranks=ranks,
            steps=loaders.files.plan.steps,
            files=loaders.files.count,
            operations=operations,
            bytes_read=bytes_read,
            bytes_written=bytes_written,
            elapsed_s=ns_to_seconds(elapsed_ns),
            warnings=(*_listing(workload, ranks), *_beside_mlperf(workload, ranks)),
        )
        write_lanes(working, _lanes(working))
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

    One rank stands for all ranks that do everything at the same times.
    """
    loaders = loaders_of(setting)
    _, first = np.unique(loaders.alike(np.arange(setting.ranks)), return_index=True)
    clock = RunClock(loaders, first)
    elapsed = clock.run()
    return np.array(clock.meetings_ns, dtype=np.int64), elapsed


def _lanes(working: Path) -> pa.Table:
    """The lanes of the operations (`LANES_SCHEMA`): 0 is the training thread, all others read ahead of it."""
    rank, lane = written_lanes(working)
    role = np.where(lane == 0, ROLES.index("main"), ROLES.index("reader")).astype(np.int8)
    return table_from_columns({"rank": rank, "lane": lane, "role": role}, LANES_SCHEMA)


def _chunks(setting: Setting) -> list[tuple[int, int]]:
    """First and last + 1 of the ranks of each part."""
    loaders = loaders_of(setting)
    numbers = sum(each.fetches * (5 + 7 * loaders.of(each).piece_count) for each in loaders.files.plan.passes)
    size = max(1, min(-(-setting.ranks // CHUNKS), CHUNK_NUMBERS // max(numbers, 1)))
    return [(first, min(first + size, setting.ranks)) for first in range(0, setting.ranks, size)]


def _write(
    setting: Setting,
    meetings_ns: np.ndarray,
    working: Path,
    workers: Workers,
    on_progress: Callable[[int, int], None] | None,
) -> _Counts:
    """Write operations and spans of all ranks; returns their totals."""
    loaders, chunks = loaders_of(setting), _chunks(setting)
    pieces = setting.ranks * sum(each.fetches * loaders.of(each).piece_count for each in loaders.files.plan.passes)
    total, work = np.zeros(3, dtype=np.int64), partial(write_ranks, setting, meetings_ns, working)
    with SpansWriter(working) as spans, workers.results(work, chunks, operations=pieces) as parts:
        for (_, last), (counts, spans_of_part) in zip(chunks, parts, strict=True):
            spans.write(spans_of_part)
            total += counts
            if on_progress is not None:
                on_progress(last, setting.ranks)
    return total


def write_ranks(
    setting: Setting, meetings_ns: np.ndarray, working: Path, ranks: tuple[int, int]
) -> tuple[_Counts, pa.Table]:
    """Write the operations of the ranks [first, last) into `working`, as separate parts.

    Returns: their totals and spans."""
    loaders, (first, last) = loaders_of(setting), ranks
    times = list(RunClock(loaders, np.arange(first, last), meetings_ns=meetings_ns).segments())
    spans, moved = [], np.zeros(2, dtype=np.int64)
    with OpsWriter(working) as writer:
        for rank, timeline in zip(range(first, last), timelines(times, last - first), strict=True):
            rows = RankRows(loaders, rank, timeline)
            for table in rows.operations():
                op, length = codes(table, "op"), table["length"].to_numpy()
                moved += [int(length[op == code].sum()) for code in (READ, WRITE)]
                writer.write(table)
            spans.append(rows.spans())
    return np.array([writer.rows, *moved], dtype=np.int64), pa.concat_tables(spans)


def _listing(workload: Workload, ranks: int) -> Iterator[str]:
    """A warning about the listing of the data folder, which no operation of a capture can express."""
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


_MLPERF_RANKS = {"llama3_8b": 8, "llama3_70b": 64, "llama3_405b": 512, "llama3_1t": 1024}
"""Ranks that save a model in MLPerf Storage; fewer save a subset."""


def _beside_mlperf(workload: Workload, ranks: int) -> Iterator[str]:
    """Warnings where people expect the figures of MLPerf Storage, and get others."""
    parallel, whole = workload.model.parallelism, _MLPERF_RANKS.get(workload.model.name, 0)
    if ranks < whole and workload.checkpoint.mode != "subset":
        data = whole // (parallel.tensor * parallel.pipeline)
        yield (
            f"{workload.model.name} is saved by {whole} ranks in MLPerf Storage, and these {ranks} hold all of it; for "
            f"the part that {ranks} of {whole} save give checkpoint.mode=subset model.parallelism.data={data}"
        )
    if workload.model.name == "flux" and workload.workflow.train and not workload.reader.preprocess_time.mean_s:
        yield (
            "the description of flux has no time to decode its Parquet files, which limits submissions to MLPerf "
            "Storage to an accelerator utilisation of some 37 %: reader.preprocess_time=0.605 adds it"
        )


def _looked_at(files: int, interval: int) -> int:
    """Files that are examined instead of a listing: the first, the last and each `interval`-th; none for 0."""
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
