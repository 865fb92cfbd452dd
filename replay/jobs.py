"""Many jobs at once: finds the jobs among logs and captures, merges each into a capture, and sums up each in a line."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from dxt_replay.profiler_merge.analysis.steady_loop import waits_are_real
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.profiler_merge.darshan.jobs import LOG_SUFFIXES, logs_by_job
from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.replay.causal.storage_limit import NoStorageLimitError, storage_limit
from dxt_replay.traces.errors import CaptureError, DxtReplayError, LogError, TargetError, UsageError
from dxt_replay.traces.output import remove_kept
from dxt_replay.traces.plain import Result, plain
from dxt_replay.traces.store.checks import read_info
from dxt_replay.traces.store.digests import file_digest
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.text import program_of
from dxt_replay.traces.units import NS_PER_S
from dxt_replay.traces.unseen import nothing_recorded
from dxt_replay.traces.workers import Work, workers_of

PathLike = str | os.PathLike[str]

CAPTURE_SUFFIX = ".capture"
MERGED, PRESENT, FAILED = "merged", "present", "failed"
OPERATIONS_A_LOG = 400_000
"""What a small log or capture costs, in operations read from a capture (`Workers.results`)."""

OnJob = Callable[[int, int], None]
"""Called after each job with the number of jobs that are done, and of all."""


def several(paths: PathLike | Sequence[PathLike]) -> list[Path]:
    """One path or many, as a list."""
    return [Path(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job. path: its capture, or the first of its logs. name: that path below the folder that was given, without
    its suffix. logs: empty for a capture."""

    name: str
    path: Path
    logs: tuple[Path, ...] = ()


def find_jobs(given: Sequence[Path], *, captures: bool) -> tuple[list[Job], int]:
    """The jobs in the given paths, by name: logs, captures, and folders that hold both at any depth. And the number of
    logs of processes that only looked like a part of a job (`uname`, trackers), which were left out.

    Logs of single processes are one job if they lie in one folder (or in its folders `rank<r>`) and share a job id, a
    parent or a command. A log of several ranks, or one that cannot be read, is a job of its own. `captures`: False
    skips captures.
    Raises: LogError for a path that does not exist, or a folder without any log or capture.
    """
    jobs: list[Job] = []
    logs: dict[Path, dict[Path, Path]] = {}
    for path in dict.fromkeys(given):
        found = [each for each in _recordings(path) if captures or each[1]]
        if not found:
            raise LogError(f"{path} holds no {'capture and no ' if captures else ''}{LOG_SUFFIXES[0]} log")
        root = path if path.is_dir() and not _is_capture(path) else path.parent
        for each, is_log in found:
            if is_log:
                of_ranks = re.fullmatch(r"rank\d{1,7}", each.parent.name)
                logs.setdefault(each.parent.parent if of_ranks else each.parent, {})[each] = root
            else:
                jobs.append(Job(name=_name(each, root), path=each))
    helpers = 0
    for _, roots in sorted(logs.items()):
        opened, groups = list[DarshanLog](), list[Sequence[Path]]()
        for path in sorted(roots):
            try:
                opened.append(open_log(path))
            except LogError:  # merging it says why
                groups.append([path])
        grouped, left_out = logs_by_job(opened)
        helpers += left_out
        jobs += [
            Job(name=_name(paths[0], roots[paths[0]]), path=paths[0], logs=tuple(paths))
            for paths in [*groups, *grouped]
        ]
    return sorted(jobs, key=lambda job: job.name), helpers


def _recordings(path: Path) -> Iterator[tuple[Path, bool]]:
    """(path, whether it is a log) of each capture and log. Raises: LogError for what is not there or not listed."""

    def refuse(error: OSError) -> None:
        raise LogError(f"{error.filename} cannot be listed: {error.strerror}") from error

    if not path.exists():
        raise LogError(f"{path} does not exist")
    if not path.is_dir():
        yield path, True
        return
    for parent, folders, names in os.walk(path, onerror=refuse):
        if _is_capture(Path(parent)):
            folders.clear()
            yield Path(parent), False
        else:
            yield from ((Path(parent, name), True) for name in names if name.endswith(LOG_SUFFIXES))


def _is_capture(path: Path) -> bool:
    return (path / "capture.json").exists()


def _name(path: Path, root: Path) -> str:
    name = path.relative_to(root).as_posix() if path != root else path.name
    for suffix in (*LOG_SUFFIXES, CAPTURE_SUFFIX):
        name = name.removesuffix(suffix)
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedJob:
    """One job. status: merged, present (an earlier capture of the same logs is there) or failed. error: why it failed.

    traced, rebuilt: operations of its capture; 0 unless it was merged now.
    """

    name: str
    capture: Path
    logs: tuple[Path, ...]
    status: str
    error: str | None = None
    traced: int = 0
    rebuilt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedJobs(Result):
    """The result of `dxt-replay merge --each`. helpers: number of logs of short processes beside a job, such as
    `uname`, which were left out."""

    output: Path
    jobs: tuple[MergedJob, ...]
    helpers: int

    @property
    def counts(self) -> Counter[str]:
        """How many jobs have each status."""
        return Counter(job.status for job in self.jobs)

    def as_json(self) -> dict[str, Any]:
        return {
            "output": str(self.output),
            **{status: self.counts[status] for status in (MERGED, PRESENT, FAILED)},
            "helpers": self.helpers,
            "jobs": plain(self.jobs),
        }


def merge_each(
    logs: PathLike | Sequence[PathLike],
    output: PathLike,
    *,
    exclude: Sequence[str] = (),
    reconstruct: bool = True,
    force: bool = False,
    executor: Work = None,
    on_job: OnJob | None = None,
) -> MergedJobs:
    """Merge every job among Darshan logs into a capture of its own, in the folder `output`.

        made = dxt_replay.merge_each("/var/log/darshan/2026", "captures")
        [(job.name, job.error) for job in made.jobs if job.error]

    A capture has the name and the folder of its (first) log below the given folder. A job that cannot be merged does
    not stop the others. An earlier capture of the same logs is kept; `force` replaces it. `executor` shares the work.
    Raises: LogError for a folder without logs; UsageError if two jobs would have the same capture; WorkerError.
    """
    jobs, helpers = find_jobs(several(logs), captures=False)
    twice = [name for name, count in Counter(job.name for job in jobs).items() if count > 1]
    if twice:
        same = [str(job.path) for job in jobs if job.name == twice[0]]
        raise UsageError(f"{' and '.join(same)} would be merged into one capture: give the folder above them")
    options = MergeOptions(exclude=tuple(exclude), reconstruct=reconstruct, force=force)
    folder = Path(output).absolute() if workers_of(executor).elsewhere else Path(output)
    made = _results(partial(_merged, folder, options), jobs, executor, on_job)
    return MergedJobs(output=Path(output), jobs=tuple(made), helpers=helpers)


def _results(work: Callable[[Job], Any], jobs: Sequence[Job], executor: Work, on_job: OnJob | None) -> list[Any]:
    made, workers = [], workers_of(executor)
    if workers.elsewhere:  # in other working directories
        jobs = [
            dataclasses.replace(job, path=job.path.absolute(), logs=tuple(log.absolute() for log in job.logs))
            for job in jobs
        ]
    operations = OPERATIONS_A_LOG * sum(max(len(job.logs), 1) for job in jobs)
    with workers.results(work, jobs, operations=operations, named=lambda job: str(job.path)) as results:
        for result in results:
            made.append(result)
            if on_job is not None:
                on_job(len(made), len(jobs))
    return made


def _merged(output: Path, options: MergeOptions, job: Job) -> MergedJob:
    capture = output / f"{job.name}{CAPTURE_SUFFIX}"
    made = MergedJob(name=job.name, capture=capture, logs=job.logs, status=PRESENT)
    try:
        if not options.force and _is_of(capture, job.logs):
            return made
        for folder in capture.parents:
            if output in folder.parents and folder.is_symlink():
                raise TargetError(
                    f"{folder} is a symbolic link, which is not followed: remove it, or give another --output"
                )
        capture.parent.mkdir(parents=True, exist_ok=True)
        result = merge(job.logs, [], capture, options)
    except (DxtReplayError, OSError) as error:
        if not options.force and _is_of(capture, job.logs):  # another command was faster
            remove_kept(error)
            return made
        return dataclasses.replace(made, status=FAILED, error=str(error))
    return dataclasses.replace(made, status=MERGED, traced=result.operations, rebuilt=result.reconstructed)


def _is_of(capture: Path, logs: Sequence[Path]) -> bool:
    """Whether a whole capture is there that was made of these logs; a launcher's log is in none."""
    with suppress(CaptureError, OSError):
        info = read_info(capture)
        digests = {source.sha256 for source in info.sources}
        return not info.partial and bool(digests) and digests <= {file_digest(path) for path in logs}
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """One job of the table.

    Operations and bytes: of the trace and those rebuilt from counters together. traced_pct: traced share of the counted
    bytes. io_s (mean of the ranks), io_pct (of the run time), bandwidth and transfer size: of traced operations, None
    without any. step_s and the shares of the training loop: None without a profile.
    error: why the job could not be read; all fields but its name are then None.
    """

    name: str
    job_id: int | None = None
    start: datetime | None = None
    program: str | None = None
    ranks: int | None = None
    run_time_s: float | None = None
    files: int | None = None
    reads: int | None = None
    writes: int | None = None
    metadata_operations: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    traced_pct: float | None = None
    io_s: float | None = None
    io_pct: float | None = None
    bandwidth_mib_s: float | None = None
    median_transfer_bytes: float | None = None
    steps: int | None = None
    step_s: float | None = None
    compute_pct: float | None = None
    input_wait_pct: float | None = None
    storage_limit_pct: float | None = None
    partial: bool | None = None
    warnings: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummaries(Result):
    """The lines of several jobs. helpers: number of logs of short processes beside a job, such as `uname`, which have
    no line."""

    jobs: tuple[JobSummary, ...]
    helpers: int

    @property
    def failed(self) -> int:
        """Jobs that could not be read."""
        return sum(job.error is not None for job in self.jobs)

    def table(self) -> pa.Table:
        """A row for each job, with the fields of `JobSummary` as in JSON."""
        return pa.Table.from_pylist(plain(self.jobs))

    def as_json(self) -> dict[str, Any]:
        return {"helpers": self.helpers, "jobs": plain(self.jobs)}


def summarise_each(
    paths: PathLike | Sequence[PathLike], *, sort: str = "name", executor: Work = None, on_job: OnJob | None = None
) -> JobSummaries:
    """Sum up each job among captures, Darshan logs, and folders with these in a line.

        jobs = pandas.DataFrame(dxt_replay.summarise_each("captures", sort="bytes_read").jobs)
        jobs[jobs.input_wait_pct > 20]

    Logs are merged into temporary captures. A job that cannot be read has a line with its `error`. `executor` shares
    the work. `sort`: a column, in which numbers begin with the largest, texts and times with the least; nulls last.
    Raises: LogError for a path with neither captures nor logs; UsageError for another column; WorkerError.
    """
    columns = [each.name for each in dataclasses.fields(JobSummary)]
    if sort not in columns:
        raise UsageError(f"--sort {sort}: give one of {', '.join(columns)}")
    jobs, helpers = find_jobs(several(paths), captures=True)
    # Made here and not in the worker, which may end at any time.
    with TemporaryDirectory(prefix="dxt-replay-") as folder:
        lines: list[JobSummary] = _results(partial(_line, Path(folder)), jobs, executor, on_job)

    def place(job: JobSummary) -> tuple[bool, Any, str]:
        value = getattr(job, sort)
        return value is None, -value if isinstance(value, (int, float)) else value or "", job.name

    return JobSummaries(jobs=tuple(sorted(lines, key=place)), helpers=helpers)


def _line(folder: Path, job: Job) -> JobSummary:
    try:
        if not job.logs:
            return _summary(job.name, open_capture(job.path))
        # A worker on another machine has a temporary directory of its own.
        with TemporaryDirectory(dir=folder if folder.is_dir() else None) as place:
            capture = Path(place, f"job{CAPTURE_SUFFIX}")
            merge(job.logs, [], capture)
            return _summary(job.name, open_capture(capture, named=job.path))
    except (DxtReplayError, OSError) as error:
        return JobSummary(name=job.name, error=str(error))


def _summary(name: str, capture: Capture) -> JobSummary:
    """Raises: CaptureError when the capture is damaged."""
    found, info = summarise(capture), capture.info
    io_s, run_time_s = found.io_time_s.union_per_rank_mean, info.job.run_time_s
    rebuilt, loop, steps = found.reconstructed, found.loop, found.steps.count
    more: dict[str, Any] = {}
    if not nothing_recorded(found.coverage.unseen):
        more |= {
            "files": capture.files.num_rows,
            "reads": found.operations.read + rebuilt.read,
            "writes": found.operations.write + rebuilt.write,
            "metadata_operations": found.operations.other + rebuilt.other,
            "bytes_read": found.bytes.read + rebuilt.bytes_read,
            "bytes_written": found.bytes.written + rebuilt.bytes_written,
        }
    if found.operations.read + found.operations.write:
        more |= {
            "io_s": io_s,
            "io_pct": 100 * io_s / run_time_s if run_time_s else None,
            "bandwidth_mib_s": found.aggregate_bandwidth_mib_s,
            "median_transfer_bytes": found.transfer_size_bytes.median,
        }
    if steps:
        more |= {"step_s": found.steps.mean_s, "storage_limit_pct": _limit_pct(capture)}
    if steps and loop is not None:
        more |= {"compute_pct": loop.compute_pct, "input_wait_pct": loop.input_wait_pct}
    return JobSummary(
        name=name,
        job_id=info.job.job_id,
        start=datetime.fromtimestamp(info.job.start_ns // NS_PER_S, timezone.utc) if info.job.start_ns > 0 else None,
        program=program_of(info.job.exe.strip()) or None,
        ranks=len(capture.ranks),
        run_time_s=run_time_s or None,
        traced_pct=None if found.coverage.bytes is None else 100 * found.coverage.bytes,
        steps=steps,
        partial=info.partial,
        warnings=len(info.warnings),
        **more,
    )


def _limit_pct(capture: Capture) -> float | None:
    with suppress(NoStorageLimitError):
        if not waits_are_real(capture.info):
            return None
        found = storage_limit(capture)
        least, most = found.saved_between_ns
        return found.limit_pct if 100 * (most - least) < found.recorded_ns else None
    return None
