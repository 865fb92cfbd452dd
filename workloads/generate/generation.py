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
from dxt_replay.traces.records import BenchmarkRun
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
from dxt_replay.traces.store.writer import (
    OpsWriter,
    begin_capture,
    check_capture_output,
    discard_capture,
    publish_capture,
    spans_writer,
    write_capture_info,
    write_files,
    write_hdf5,
    write_lanes,
    written_lanes,
)
from dxt_replay.traces.units import ns_to_seconds
from dxt_replay.traces.version import VERSION
from dxt_replay.traces.workers import ALONE, Workers
from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.files import record_length
from dxt_replay.workloads.generate.clock import DEFAULT_DEVICE, AssumedDevice, RunClock, Times, parse_device
from dxt_replay.workloads.generate.plan import RunPlan
from dxt_replay.workloads.generate.readers import Loaders
from dxt_replay.workloads.generate.rows import RankRows

BLOCK_BYTES = 4096
"""Assumed block size of the file system: that of ext4 and XFS."""

CHUNKS = 32
"""Parts into which many ranks are divided. It does not depend on the number of processes, so neither do the files."""

CHUNK_NUMBERS = 1 << 23
"""About the largest number of time values of the ranks of a part."""


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


_Setting = tuple[Workload, int, AssumedDevice, int, int]
"""Everything that determines a generated run: workload, number of ranks, device, seed of the draws, block size."""

_loaders_of: Callable[[_Setting], Loaders] = lru_cache(maxsize=1)(lambda setting: Loaders(*setting))
"""The readers and files of a run, made once in each process."""


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
    setting = (workload, ranks, parse_device(device), seed, BLOCK_BYTES)
    check_capture_output(output, force=force)
    loaders = _loaders_of(setting)
    # When the ranks leave each of their meetings: one rank stands for all that do everything at the same times.
    clock = RunClock(loaders, np.unique(loaders.alike(np.arange(ranks)), return_index=True)[1])
    elapsed_ns = clock.run()
    meetings_ns = np.array(clock.meetings_ns, dtype=np.int64)
    working = begin_capture(output, force=force)
    try:
        pieces = sum(each.fetches * loaders.of(each).piece_count for each in loaders.plan.passes)
        numbers = sum(each.fetches * (5 + 7 * loaders.of(each).piece_count) for each in loaders.plan.passes)
        size = max(1, min(-(-ranks // CHUNKS), CHUNK_NUMBERS // max(numbers, 1)))
        chunks = [(first, min(first + size, ranks)) for first in range(0, ranks, size)]
        total, work = np.zeros(3, dtype=np.int64), partial(_write_ranks, setting, meetings_ns, working)
        with spans_writer(working) as spans, workers.results(work, chunks, operations=ranks * pieces) as parts:
            for (_, last), (counts, spans_of_part) in zip(chunks, parts, strict=True):
                spans.write(spans_of_part)
                total += counts
                if on_progress is not None:
                    on_progress(last, ranks)
        write_files(working, loaders.files.table())
        write_hdf5(working, loaders.files.hdf5_table())
        rank, lane = written_lanes(working)
        role = np.where(lane == 0, ROLES.index("main"), ROLES.index("reader")).astype(np.int8)
        write_lanes(working, table_from_columns({"rank": rank, "lane": lane, "role": role}, LANES_SCHEMA))
        operations, bytes_read, bytes_written = total.tolist()
        generated = Generated(
            ranks=ranks,
            steps=loaders.plan.steps,
            files=loaders.files.count,
            operations=operations,
            bytes_read=bytes_read,
            bytes_written=bytes_written,
            elapsed_s=ns_to_seconds(elapsed_ns),
            warnings=(*_listing(workload, ranks), *_beside_mlperf(workload, ranks)),
        )
        write_capture_info(working, _info(setting, loaders.plan, generated, notes))
        publish_capture(working, output, force=force)
    except BaseException:
        discard_capture(working)
        raise
    return generated


def _write_ranks(
    setting: _Setting, meetings_ns: np.ndarray, working: Path, ranks: tuple[int, int]
) -> tuple[np.ndarray, pa.Table]:
    """Write the operations of the ranks [first, last) into `working`, as separate parts.

    Returns: their operations, bytes read and bytes written, and their spans."""
    loaders, (first, last) = _loaders_of(setting), ranks
    segments = list(RunClock(loaders, np.arange(first, last), meetings_ns=meetings_ns).segments())
    by_rank = [np.argsort(each.pieces["row"], kind="stable") for each in segments]
    ends = [
        np.searchsorted(each.pieces["row"][order], np.arange(last - first + 1))
        for each, order in zip(segments, by_rank, strict=True)
    ]
    spans, moved = [], np.zeros(2, dtype=np.int64)
    with OpsWriter(working) as writer:
        for row in range(last - first):
            timeline = [
                Times(each.segment, each.moments[:, :, row], each.pieces[order[end[row] : end[row + 1]]])
                for each, order, end in zip(segments, by_rank, ends, strict=True)
            ]
            rows = RankRows(loaders, first + row, timeline)
            for table in rows.operations():
                op, length = codes(table, "op"), table["length"].to_numpy()
                moved += [int(length[op == code].sum()) for code in (READ, WRITE)]
                writer.write(table)
            spans.append(rows.spans())
    return np.array([writer.rows, *moved], dtype=np.int64), pa.concat_tables(spans)


def _listing(workload: Workload, ranks: int) -> Iterator[str]:
    """A warning about the listing of the data folder, which no operation of a capture can express."""
    data = workload.dataset
    files = data.num_files_train + data.num_files_eval * workload.workflow.evaluation
    by_one = workload.reader.data_loader == "pytorch"
    if workload.workflow.train and not (by_one and data.skip_listing):
        who = "rank 0 lists" if by_one else f"each of {ranks:,} ranks lists"
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


def _info(setting: _Setting, plan: RunPlan, generated: Generated, notes: Sequence[str]) -> CaptureInfo:
    workload, ranks, device, seed, block_bytes = setting
    source, blocks = workload.source, tuple(plan.blocks())
    facts = BenchmarkRun(
        workload=source.name,
        overrides=source.overrides,
        batch_size=workload.reader.batch_size,
        record_bytes=record_length(workload.dataset),
        files=workload.dataset.num_files_train,
        samples_per_file=workload.dataset.num_samples_per_file,
        exclude_start_steps=workload.metric.exclude_start_steps,
        exclude_end_steps=workload.metric.exclude_end_steps,
        blocks=blocks,
    )
    job = Job(
        nprocs=ranks,
        run_time_s=generated.elapsed_s,
        exe="dlio_benchmark",
        metadata=facts.as_metadata() if blocks else {},
    )
    made_by = {
        "program": "dxt-replay",
        "version": VERSION,
        "command": "generate",
        "operations_stored": generated.operations,
        "workload": source.name,
        "overrides": list(source.overrides),
        "seed": seed,
        "device": str(device),
        "block_bytes": block_bytes,
    }
    return CaptureInfo(
        job=job,
        ranks=tuple(range(ranks)),
        sources=(Source(name=source.name, sha256=source.sha256, kind="workload"),),
        coverage=Coverage(bytes=1.0, operations=1.0),
        lanes="recorded",
        dependencies="known",
        warnings=(*notes, *generated.warnings),
        made_by=made_by,
    )
