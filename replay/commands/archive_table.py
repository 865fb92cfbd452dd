"""`dxt-replay summary` of several jobs: a table with a line for each job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.traces.errors import DxtReplayError, UsageError

if TYPE_CHECKING:
    from dxt_replay.replay.commands.table_output import TableOutput
    from dxt_replay.replay.interface.captures import NamedPart
    from dxt_replay.traces.workers.workers import Workers

ONE_JOB = ("by", "show", "findings", "maps", "bin_width", "ranks", "begin", "until", "steps")
FILTERS = ("path", "exclude", "op", "api")


def is_archive(named: NamedPart) -> bool:
    """Whether the user named several jobs, or a folder that does not hold exactly one job."""
    path = named.path
    if named.others:
        return True
    if not path.is_dir() or (path / "capture.json").exists() or (path / "ops").exists():
        return False
    from dxt_replay.replay.archive.archive_jobs import archive_jobs  # a capture needs no readers of logs

    try:
        found = archive_jobs([path], captures=True)
    except DxtReplayError:
        return False  # opening it as one job says what is wrong
    return len(found.jobs) + len(found.unread) > 1 or any(not job.logs for job in found.jobs)


def refuse_options_of_one_job() -> None:
    """Raises: UsageError for an option that chooses a part or a table of one job."""
    from dxt_replay.replay.commands.answer import given_options

    if given := given_options((*ONE_JOB, *FILTERS)):
        raise UsageError(f"{given[0]} is for one job: leave it out, or name one capture")


def print_catalogue(paths: Sequence[Path], workers: Workers, *, sort: str, output: TableOutput | None) -> int:
    """Print or write the table of jobs. Returns the exit status: 1 if a job could not be read."""
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import count_progress
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.archive_sections import catalogue_sections

    with unwind_on_signals(), count_progress("summarised", "jobs") as on_job:
        made = dxt_replay.catalogue(paths, sort=sort, executor=workers, on_job=on_job)
    if output is not None:
        output.write(made.table)
    else:
        answer(made, catalogue_sections)
    return 1 if made.failed else 0
