"""Many jobs at once: merges each job of an archive of logs, and lists jobs in a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.interface.merging import several
from dxt_replay.replay.options.choices import PathLike
from dxt_replay.replay.options.making import MergeEachChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.workers.workers import Work, workers_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.archive.catalogue import Catalogue
    from dxt_replay.replay.archive.merge_each import MergedArchive

OnJob = Callable[[int, int], None]
"""Called after each job with the number of jobs that are done, and of all."""


@takes(MergeEachChoices)
def merge_each(
    logs: PathLike | Sequence[PathLike],
    output: PathLike,
    *,
    force: bool = False,
    executor: Work = None,
    on_job: OnJob = lambda done, jobs: None,
    **choices: Unpack[MergeEachChoices],
) -> MergedArchive:
    """Merge every job of an archive of Darshan logs into a capture of its own, in the folder `output`.

        made = dxt_replay.merge_each("/var/log/darshan/2026", "captures")
        [(job.name, job.error) for job in made.jobs if job.error]

    A capture has the name and the folder of its (first) log below the given folder.
    A job that cannot be merged does not stop the others. An earlier capture of the same logs is kept; `force` replaces
    it. `executor` shares the work.
    Raises: LogError for a folder without logs; UsageError if two jobs would have the same capture.
    """
    from dxt_replay.profiler_merge.merge import MergeOptions
    from dxt_replay.replay.archive import merge_each as merging
    from dxt_replay.replay.archive.archive_jobs import archive_jobs

    chosen = filled(MergeEachChoices, choices)
    options = MergeOptions(**{**chosen, "exclude": tuple(chosen["exclude"])}, force=force)
    archive = archive_jobs(several(logs), captures=False)
    return merging.merge_each(archive, Path(output), options, workers_of(executor), _counted(on_job, archive.jobs))


def catalogue(
    paths: PathLike | Sequence[PathLike],
    *,
    sort: str = "name",
    executor: Work = None,
    on_job: OnJob = lambda done, jobs: None,
) -> Catalogue:
    """A table with a line for each job among captures, Darshan logs, and folders with these.

        jobs = dxt_replay.catalogue("captures", sort="bytes_read").frame()
        jobs[jobs.input_wait_pct > 20]

    `sort`: a column, largest number first, or COLUMN:asc, COLUMN:desc. Logs are merged into temporary captures. A job
    that cannot be read has a line with its `error`. `executor` shares the work.
    Raises: LogError for a path with neither captures nor logs; UsageError for another column.
    """
    from dxt_replay.replay.archive import catalogue as lines
    from dxt_replay.replay.archive.archive_jobs import archive_jobs

    lines.check_order(sort)
    archive = archive_jobs(several(paths), captures=True)
    return lines.catalogue(archive, workers_of(executor), _counted(on_job, archive.jobs)).sorted_by(sort)


def _counted(on_job: OnJob, jobs: Sequence[object]) -> Callable[[object], None]:
    done = 0

    def count(job: object) -> None:
        nonlocal done
        done += 1
        on_job(done, len(jobs))

    return count
