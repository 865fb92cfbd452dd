"""`dxt-replay summary`: the totals and tables of a capture."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replay.commands.options import capture_argument, filter_options, force_option, json_option
from traces.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from profiler_merge.analysis.named_tables import Views
    from profiler_merge.analysis.rank_files import RankFiles
    from profiler_merge.analysis.table_formats import StreamedTable
    from replay.commands.output import StreamedRows
    from traces.part import Part

GROUPINGS = ("rank", "file", "format", "step", "size")
VIEWS = (
    "findings", "overlap", "steps", "sizes", "darshan-sizes", "exact-sizes", "files", "ranks", "rank-files", "timeline",
    "tfrecords", "datasets",
)  # fmt: skip
TERMINAL_BINS = 40
STANDARD_OUTPUT = "-"


@click.command()
@capture_argument("capture")
@click.option("--by", type=click.Choice(GROUPINGS), help="Add a table of totals per group.")
@click.option("--show", multiple=True, type=click.Choice(VIEWS), help="This table instead of the totals; repeatable.")
@click.option("--findings", is_flag=True, help="What stands out, with evidence and remedies: --show findings.")
@click.option("--bin", "bin_width", metavar="TIME", help="Width of a bin of the timeline, such as 1s or 5ms.")
@filter_options
@click.option(
    "--compat-vanidl", is_flag=True, help="VaniDL's numbers: times in 0.1 ms, 0 becomes 1 ms, no path with .py."
)
@click.option("--csv", "csv_file", metavar="FILE|-", help="Write the one table asked for as comma-separated values.")
@force_option
@json_option
def command(
    capture: Path,
    by: str | None,
    show: tuple[str, ...],
    findings: bool,
    bin_width: str | None,
    chosen_part: Callable[[], Part],
    compat_vanidl: bool,
    csv_file: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Summarise a capture (or a .darshan log): operations, bytes, times, patterns.

    Totals count what was traced, once per file where several layers recorded it.
    """

    from profiler_merge.analysis.durations import VANIDL_EXCLUDES, DurationRule, recorded_durations, vanidl_durations
    from profiler_merge.analysis.named_tables import summary_table, views
    from replay.commands.options import opened
    from replay.commands.output import print_json
    from replay.commands.progress import status
    from replay.show.terminal import print_summary
    from traces.output import check_output
    from traces.store.part_capture import part_of
    from traces.units import parse_duration_ns

    names = tuple(dict.fromkeys([*show, *(["findings"] if findings else [])]))
    _check_tables(names, by, csv_file, as_json=as_json)
    if csv_file is not None and csv_file != STANDARD_OUTPUT:
        check_output(Path(csv_file), force=force)
    part = chosen_part()
    if compat_vanidl:
        part = dataclasses.replace(part, exclude=(*part.exclude, *VANIDL_EXCLUDES))
    width = None if bin_width is None else parse_duration_ns(bin_width, "--bin")
    with opened(capture) as whole:
        source = part_of(whole, part)
        durations: DurationRule = vanidl_durations(source.info) if compat_vanidl else recorded_durations
        with status("summarising"):
            found = views(source, names, by=by, durations=durations, bin_ns=width, bins=TERMINAL_BINS)
            shown = None if csv_file is not None or as_json else _shown(found)
        if shown is not None:
            print_summary(shown)
        elif as_json:
            print_json(found.as_json(_streamed))
        elif csv_file is not None:
            _write_csv(found.tables[names[0]] if names else summary_table(found.summary), csv_file, force=force)


def _check_tables(names: tuple[str, ...], by: str | None, csv_file: str | None, *, as_json: bool) -> None:
    if csv_file is not None and (len(names) + (by is not None) > 1 or as_json):
        raise UsageError("--csv writes one table: give one --show, or --by, and no --json")


def _shown(found: Views) -> dict[str, Any]:
    """The JSON object, whose table "rank-files" has the largest rows only, `rows_in_all` says of how many."""
    from replay.show.section import MAX_GROUPS

    result = found.as_json(lambda table: table.largest(MAX_GROUPS).to_pylist())
    result["rows_in_all"] = {name: table.num_rows for name, table in found.tables.items()}
    return result


def _streamed(table: RankFiles) -> StreamedRows:
    from profiler_merge.analysis.table_formats import json_members
    from replay.commands.output import StreamedRows

    return StreamedRows(members=partial(json_members, table))


def _write_csv(table: pa.Table | StreamedTable, csv_file: str, *, force: bool) -> None:
    """Raises: TargetError when the file cannot be written."""
    from profiler_merge.analysis.table_formats import write_csv
    from traces.output import new_file

    if csv_file == STANDARD_OUTPUT:
        write_csv(table, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with new_file(Path(csv_file), force=force) as stream:
        write_csv(table, stream)
