"""`dxt-replay merge`: merge Darshan logs or other traces, and profiles, into a capture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.session import warn
from dxt_replay.replay.commands.shared_options import PATH, force_option, json_option, output_option, worker_options
from dxt_replay.replay.options.making import MergeChoices, MergeEachChoices
from dxt_replay.replay.options.option import options_of
from dxt_replay.traces.errors import UsageError

if TYPE_CHECKING:
    from dxt_replay.traces.workers import Workers

_OPTIONS = ("align", "exclude", "reconstruct", "inspect", "maps")
"""Keywords of the options in the order of --help, below --each."""


@click.command()
@click.argument("logs", nargs=-1, required=True, type=PATH, metavar="LOG...")
@family_options(MergeChoices, "profiles")
@output_option("OUT.capture", "The capture to write, such as run.capture; with --each the folder for all of them.")
@click.option("--each", is_flag=True, help="Merge every job among the Darshan logs into a capture of its own, in OUT.")
@family_options(MergeChoices, *_OPTIONS)
@worker_options
@force_option
@json_option
def command(
    logs: tuple[Path, ...],
    output: Path,
    each: bool,
    workers: Workers,
    **choices: Any,
) -> int:
    """Merge Darshan logs with DXT, or other traces, and profiles, into a capture.

    LOG is the log of an MPI job. For a job without MPI, give the logs of all its processes or a folder with them.
    Files of DFTracer or of `strace -f -ttt -T -y` can replace the logs. Profiles alone make a capture without I/O. The
    kind of each file is recognised by its content.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer, given_options
    from dxt_replay.replay.commands.progress import count_progress, status
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.make import merge_sections

    if not each:
        if given := given_options(("workers", "dask")):
            warn(f"one process merges a job: {given[0]} shares the jobs of --each alone")
        with unwind_on_signals(), status("merging"):
            result = dxt_replay.merge(logs, output, **choices)
        answer(result, merge_sections, "summary", output)
        return 0
    from dxt_replay.replay.show.make import merged_job_sections

    of_many = options_of(MergeEachChoices)
    of_one = {stated.parameter for name, stated in options_of(MergeChoices).items() if name not in of_many}
    if given := given_options(of_one):
        raise UsageError(f"{given[0]} speaks of one job: leave --each out, or merge that job by itself")
    options = {name: value for name, value in choices.items() if name in of_many or name == "force"}
    with unwind_on_signals(), count_progress("merged", "jobs") as on_job:
        made = dxt_replay.merge_each(logs, output, executor=workers, on_job=on_job, **options)
    answer(made, merged_job_sections, "summary", output)
    return 1 if made.counts["failed"] else 0
