"""Many jobs at once: merges each job of a folder of logs, and sums up each in a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.replay.interface.merging import several
from dxt_replay.replay.options.choices import PathLike
from dxt_replay.replay.options.making import MergeEachChoices
from dxt_replay.replay.options.option import filled, takes
from dxt_replay.traces.workers import Work, workers_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dxt_replay.replay.jobs import JobSummaries, MergedJobs, OnJob


def _ignore(done: int, jobs: int) -> None:
    pass


@takes(MergeEachChoices)
def merge_each(
    logs: PathLike | Sequence[PathLike],
    output: PathLike,
    *,
    force: bool = False,
    executor: Work = None,
    on_job: OnJob = _ignore,
    **choices: Unpack[MergeEachChoices],
) -> MergedJobs:
    """Merge every job among Darshan logs into a capture of its own, in the folder `output`.

        made = dxt_replay.merge_each("/var/log/darshan/2026", "captures")
        [(job.name, job.error) for job in made.jobs if job.error]

    A capture has the name and the folder of its (first) log below the given folder. A job that cannot be merged does
    not stop the others. An earlier capture of the same logs is kept; `force` replaces it. `executor` shares the work.
    `on_job` is called after each job with the number of jobs that are done, and of all.
    Raises: LogError for a folder without logs; UsageError if two jobs would have the same capture.
    """
    from dxt_replay.profiler_merge.merge import MergeOptions
    from dxt_replay.replay import jobs

    chosen = filled(MergeEachChoices, choices)
    options = MergeOptions(**{**chosen, "exclude": tuple(chosen["exclude"])}, force=force)
    found = jobs.find_jobs(several(logs), captures=False)
    return jobs.merge_each(found, Path(output), options, workers_of(executor), on_job)


def summarise_each(
    paths: PathLike | Sequence[PathLike],
    *,
    sort: str = "name",
    executor: Work = None,
    on_job: OnJob = _ignore,
) -> JobSummaries:
    """Sum up each job among captures, Darshan logs, and folders with these in a line.

        jobs = pandas.DataFrame(dxt_replay.summarise_each("captures", sort="bytes_read").jobs)
        jobs[jobs.input_wait_pct > 20]

    `sort`: a column, largest number first. Logs are merged into temporary captures. A job that cannot be read has a
    line with its `error`. `executor` shares the work.
    Raises: LogError for a path with neither captures nor logs; UsageError for another column.
    """
    from dxt_replay.replay import jobs

    jobs.check_order(sort)
    found = jobs.find_jobs(several(paths), captures=True)
    return jobs.summarise_each(found, sort, workers_of(executor), on_job)
