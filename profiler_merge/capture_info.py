"""What capture.json says of a merge: the job, its sources, clocks and coverage, and what was made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dxt_replay.profiler_merge.darshan.job_logs import JobLogs
from dxt_replay.profiler_merge.log_writing import log_writing
from dxt_replay.profiler_merge.process_rows import RowTotals
from dxt_replay.profiler_merge.profiles.reading import profile_kind
from dxt_replay.profiler_merge.recognise import kind_of
from dxt_replay.traces.schema import CaptureInfo, Coverage, Job, RankClock, Source
from dxt_replay.traces.store.digests import file_digest
from dxt_replay.traces.units import ns_to_seconds
from dxt_replay.traces.version import VERSION

MAX_RANKS = 1 << 20
"""A job record that claims more ranks is damaged; then only ranks with operations count."""


def capture_info(
    job: JobLogs,
    profiles: Mapping[int, Sequence[Path]],
    more_files: Sequence[Path],
    *,
    with_operations: Collection[int],
    rows: RowTotals,
    stored: int,
    clock: Sequence[RankClock],
    coverage: Coverage,
    warnings: Sequence[str],
    extended: Mapping[str, Any],
    counted: Mapping[str, Any],
    options: Mapping[str, Any],
    digest: Callable[[Path], str],
) -> CaptureInfo:
    """The contents of capture.json. `more_files`: with spans, and no profiles. `stored`: rows of the op stream;
    `extended`, `counted`, `options`: what `made_by` repeats. `digest`: of a source.
    """
    ranks = set(range(job.nprocs)) if job.nprocs <= MAX_RANKS else set()
    return CaptureInfo(
        job=_job(job),
        ranks=tuple(sorted(ranks.union(with_operations, profiles))),
        sources=_sources(job, profiles, more_files, digest),
        clock=tuple(sorted(clock, key=lambda each: (each.rank, each.worker))),
        coverage=coverage,
        lanes="pthread_id" if rows.threads_known and all(rows.threads_known) else "overlap",
        warnings=tuple(warnings),
        made_by={
            "program": "dxt-replay",
            "version": VERSION,
            "command": "merge",
            "operations_stored": stored,
            "operations_reconstructed": rows.reconstructed,
            "rebuilt": rows.rebuilt.as_json(),
            **({"extended": dict(extended)} if extended else {}),
            **({"counted_times": dict(counted)} if counted else {}),
            **({"log_writing": written} if (written := log_writing(job)) else {}),
            **options,
        },
    )


def _job(job: JobLogs) -> Job:
    record = job.first.job
    run_time_s = record.run_time_s if len(job.processes) == 1 else None
    if run_time_s is None:
        run_time_s = max(ns_to_seconds(job.end_ns - job.start_ns), 0.0)
    return Job(
        nprocs=job.nprocs,
        run_time_s=run_time_s,
        start_ns=job.start_ns,
        end_ns=job.end_ns,
        zero_ns=job.start_ns,
        job_id=record.jobid,
        exe=record.exe,
        metadata=dict(record.metadata),
    )


def source_files(
    job: JobLogs, profiles: Mapping[int, Sequence[Path]], more_files: Sequence[Path]
) -> list[tuple[Path, str]]:
    """All files that a capture is made from, and their kinds. `more_files`: with spans, and no profiles."""
    return [
        *((process.log.path, "darshan") for process in job.processes),
        *((path, profile_kind(path)) for _, files in sorted(profiles.items()) for path in files),
        *((path, str(kind_of(path))) for path in more_files),
    ]


def _sources(
    job: JobLogs,
    profiles: Mapping[int, Sequence[Path]],
    more_files: Sequence[Path],
    digest: Callable[[Path], str],
) -> tuple[Source, ...]:
    return tuple(source_of(path, kind, digest) for path, kind in source_files(job, profiles, more_files))


def source_of(path: Path, kind: str, digest: Callable[[Path], str] = file_digest) -> Source:
    """A file that a capture is made from, with the hash of its bytes."""
    return Source(name=path.name, sha256=digest(path), kind=kind)
