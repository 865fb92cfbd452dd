"""`dxt-replay summary`: the totals and tables of a capture."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.session import current
from dxt_replay.replay.commands.shared_options import (
    PATH,
    details_option,
    filter_options,
    force_option,
    json_option,
    worker_options,
)
from dxt_replay.replay.options.looking import TableChoices
from dxt_replay.traces.errors import DxtReplayError, UsageError

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.named_tables import Views
    from dxt_replay.profiler_merge.analysis.patterns import RankFiles
    from dxt_replay.replay.commands.json_output import StreamedRows
    from dxt_replay.replay.commands.table_output import TableOutput
    from dxt_replay.replay.interface.captures import NamedPart
    from dxt_replay.traces.workers import Workers

TERMINAL_BINS = 40
_OF_ONE_JOB = (
    "by", "show", "findings", "maps", "bin_width", "ranks", "begin", "until", "steps", "path", "exclude", "op", "api",
    "parquet_file",
)  # fmt: skip


class _Command(click.Command):
    """A command whose help lists the tables."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from dxt_replay.profiler_merge.analysis.tables import TABLES

        with formatter.section("Tables (--show)"):
            formatter.write_dl([(name, table.about) for name, table in TABLES.items()])
        super().format_options(ctx, formatter)


@click.command(cls=_Command)
@click.argument("capture", nargs=-1, required=True, type=PATH, metavar="CAPTURE...")
@family_options(TableChoices, "by")
@click.option(
    "--show",
    multiple=True,
    metavar="TABLE",
    help="Print this table instead of the totals (the tables are listed above); repeatable.",
)
@click.option("--findings", is_flag=True, help="Print problems of the job and what they cost, like --show findings.")
@family_options(TableChoices, "maps", "bin")
@click.option("--sort", metavar="COLUMN", help="For several jobs: sort by this column, the largest number first.")
@filter_options
@click.option("--csv", "csv_file", metavar="FILE|-", help="Write the one table asked for as comma-separated values.")
@click.option("--parquet", "parquet_file", type=PATH, metavar="FILE", help="Write it as Parquet.")
@worker_options
@force_option
@details_option
@json_option
def command(
    capture: NamedPart,
    by: str | None,
    show: tuple[str, ...],
    findings: bool,
    sort: str | None,
    csv_file: str | None,
    parquet_file: Path | None,
    force: bool,
    workers: Workers,
    **choices: Any,
) -> int:
    """Summarise a capture (or a .darshan log): operations, bytes, times, patterns.

    The first lines say what ran and how much time storage can have cost it. Totals count traced operations, and count
    a file once if several layers recorded it.

    For several captures or logs, or a folder of many, it prints a table with a line for each job.
    """
    import dxt_replay
    from dxt_replay.profiler_merge.analysis.named_tables import summary_table
    from dxt_replay.replay.commands.answer import print_answer
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.commands.table_output import TableOutput
    from dxt_replay.replay.interface.analyses import check_tables
    from dxt_replay.replay.interface.captures import opened
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.tables import summary_or_tables

    names = tuple(dict.fromkeys([*show, *(["findings"] if findings else [])]))
    output = TableOutput.of(csv_file, parquet_file, force=force)
    check_tables(names)
    _check_tables(names, by, output)
    if _are_many(capture):
        return _print_jobs([capture.path, *capture.others], workers, sort=sort or "name", output=output)
    if sort is not None:
        raise UsageError(f"--sort orders several jobs, and {capture.path} is one: leave it out")
    with opened(capture) as source:
        with unwind_on_signals(), status("summarising"):
            found = dxt_replay.tables(source, names, by=by, bins=TERMINAL_BINS, executor=workers, **choices)
            _check_opened(found, names)
            sections = None if output is not None or current().as_json else summary_or_tables(found)
        if sections is not None:
            print_answer(sections)
        elif current().as_json:
            print_json(found.as_json(_streamed))
        elif output is not None:
            output.write(found.tables[names[0]] if names else summary_table(found.summary))
    return 0


def _are_many(named: NamedPart) -> bool:
    """Whether the user named several jobs, or a folder that does not hold exactly one."""
    path = named.path
    if named.others:
        return True
    if not path.is_dir() or (path / "capture.json").exists() or (path / "ops").exists():
        return False
    from dxt_replay.replay.jobs import find_jobs  # a capture needs no readers of logs

    try:
        found = find_jobs([path], captures=True).jobs
    except DxtReplayError:
        return False  # opening it as one job says what is wrong
    return len(found) > 1 or not found[0].logs


def _print_jobs(paths: list[Path], workers: Workers, *, sort: str, output: TableOutput | None) -> int:
    """Print or write a line for each job. Returns the exit status: 1 if a job could not be read."""
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer, given_options
    from dxt_replay.replay.commands.progress import count_progress
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.make import job_sections

    if given := given_options(_OF_ONE_JOB):
        raise UsageError(f"{given[0]} is for one job: leave it out, or name one capture")
    with unwind_on_signals(), count_progress("summarised", "jobs") as on_job:
        made = dxt_replay.summarise_each(paths, sort=sort, executor=workers, on_job=on_job)
    if output is None:
        answer(made, job_sections)
    else:
        output.write(made.table())
    return 1 if made.failed else 0


def _check_tables(names: tuple[str, ...], by: str | None, output: TableOutput | None) -> None:
    if output is not None and (len(names) + (by is not None) > 1 or current().as_json):
        raise UsageError(f"{output.option} writes one table: give one --show, or --by, and no --json")


def _check_opened(found: Views, names: tuple[str, ...]) -> None:
    """Raises: UsageError when all tables asked for need the contents of files, and no file could be opened."""
    from dxt_replay.profiler_merge.analysis.contents import NOT_HERE
    from dxt_replay.profiler_merge.analysis.named_tables import CONTENTS
    from dxt_replay.traces.units import format_counted

    absent = [path for path, why in (found.unread or {}).items() if why == NOT_HERE]
    if absent and all(name in CONTENTS and not found.tables[name].num_rows for name in names):
        raise UsageError(
            f"{format_counted(len(absent), 'file')} of the capture, such as {absent[0]}, cannot be found on this "
            "machine: give --map PREFIX=DIR, the directory that now holds the files below PREFIX"
        )


def _streamed(table: RankFiles) -> StreamedRows:
    from dxt_replay.profiler_merge.analysis.table_formats import json_members
    from dxt_replay.replay.commands.json_output import StreamedRows

    return StreamedRows(members=partial(json_members, table))
