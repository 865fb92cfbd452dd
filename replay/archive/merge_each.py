"""Merges each job of an archive of logs into a capture of its own, and keeps earlier captures of the same logs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.replay.archive.archive_jobs import CAPTURE_SUFFIX, ArchiveJob, ArchiveJobs
from dxt_replay.traces.errors import CaptureError, DxtReplayError, TargetError, UsageError
from dxt_replay.traces.output import remove_kept
from dxt_replay.traces.plain import plain
from dxt_replay.traces.store.digests import file_digest
from dxt_replay.traces.store.info import read_info
from dxt_replay.traces.workers.workers import Workers

MERGED, PRESENT, FAILED = "merged", "present", "failed"


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
class MergedArchive:
    """The result of `dxt-replay merge --each`. unread: log -> why it cannot be read. helpers: number of logs of
    short processes beside a job, such as `uname`, which were left out."""

    output: Path
    jobs: tuple[MergedJob, ...]
    unread: dict[Path, str]
    helpers: int

    @property
    def failed(self) -> int:
        """Jobs without a capture, and logs that cannot be read."""
        return self.counts[FAILED] + len(self.unread)

    @property
    def counts(self) -> Counter[str]:
        """How many jobs have each status."""
        return Counter(job.status for job in self.jobs)

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "output": str(self.output),
            **{status: self.counts[status] for status in (MERGED, PRESENT, FAILED)},
            "helpers": self.helpers,
            "unread": plain(self.unread),
            "jobs": plain(self.jobs),
        }


def merge_each(
    archive: ArchiveJobs,
    output: Path,
    options: MergeOptions,
    workers: Workers,
    on_job: Callable[[MergedJob], None] = lambda job: None,
) -> MergedArchive:
    """Merge each job into `output`/NAME.capture. A job that fails is reported in the result, and the others are merged.

    Raises: UsageError if two jobs have one name; WorkerError if workers die.
    """
    twice = [name for name, count in Counter(job.name for job in archive.jobs).items() if count > 1]
    if twice:
        same = [str(job.path) for job in archive.jobs if job.name == twice[0]]
        raise UsageError(f"{' and '.join(same)} would be merged into one capture: give the folder above them")
    made = []
    work = _Merge(output=output, options=options)
    with workers.results(work, archive.jobs, operations=archive.operations, named=str) as results:
        for job in results:
            on_job(job)
            made.append(job)
    return MergedArchive(output=output, jobs=tuple(made), unread=archive.unread, helpers=archive.helpers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    output: Path
    options: MergeOptions

    def __call__(self, job: ArchiveJob) -> MergedJob:
        capture = self.output / f"{job.name}{CAPTURE_SUFFIX}"
        made = MergedJob(name=job.name, capture=capture, logs=job.logs, status=PRESENT)
        try:
            if not self.options.force and _is_of(capture, job.logs):
                return made
            _make_folders(self.output, capture)
            result = merge(job.logs, [], capture, self.options)
        except (DxtReplayError, OSError) as error:
            if not self.options.force and _is_of(capture, job.logs):  # another command was faster
                remove_kept(error)
                return made
            return dataclasses.replace(made, status=FAILED, error=str(error))
        return dataclasses.replace(made, status=MERGED, traced=result.operations, rebuilt=result.reconstructed)


def _make_folders(output: Path, capture: Path) -> None:
    """Make the folders above a capture. Raises: OSError; TargetError for a link below `output`."""
    for folder in reversed([each for each in capture.parents if output in each.parents]):
        if folder.is_symlink():
            raise TargetError(
                f"{folder} is a symbolic link, which is not followed: remove it, or give another --output"
            )
    capture.parent.mkdir(parents=True, exist_ok=True)


def _is_of(capture: Path, logs: Sequence[Path]) -> bool:
    """Whether a whole capture is there that was made of these logs; a launcher's log is in none."""
    if not capture.is_dir():
        return False
    with suppress(CaptureError, OSError):
        info = read_info(capture)
        digests = {source.sha256 for source in info.sources}
        return not info.partial and bool(digests) and digests <= {file_digest(path) for path in logs}
    return False
