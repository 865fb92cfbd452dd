"""`dxt-replay history`: records of experiments in order of time, and where their figures changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from dxt_replay.replay.commands.shared_options import force_option, json_option
from dxt_replay.traces.errors import UsageError

if TYPE_CHECKING:
    from dxt_replay.replay.history.history import History


@click.command()
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--threshold", type=float, default=5.0, show_default=True, metavar="PCT", help="The smallest change that matters."
)
@click.option(
    "--alpha",
    type=float,
    default=0.05,
    show_default=True,
    help="Probability of a change point where all records lie within the threshold of each other.",
)
@click.option("--metric", metavar="NAME", help="Print the table of this metric.  [default: the one that decides]")
@click.option(
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write a row for each metric and record as comma-separated values; - prints them.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page with a chart of each metric; it needs no network.",
)
@force_option
@json_option
def command(
    records: tuple[Path, ...],
    threshold: float,
    alpha: float,
    metric: str | None,
    csv_file: Path | None,
    html: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Show how the figures of an experiment went from record to record, and where they changed.

    RECORDS are files that `regress --record` wrote, or folders whose .json files are read. Records of the same work,
    options and directory are a series. A change point is a place where the runs after it differ from those before it by
    more than --threshold; beside it stands what changed in the environment, such as the kernel or a mount option.
    """
    import dxt_replay
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.history.history_sections import history_sections
    from dxt_replay.replay.regression.run_metrics import METRICS
    from dxt_replay.replay.show.terminal import print_sections
    from dxt_replay.traces.output import check_output

    if metric is not None and metric not in METRICS:
        raise UsageError(f"--metric {metric!r}: choose {', '.join(METRICS)}")
    if as_json and str(csv_file) == "-":
        raise UsageError("--json and --csv - both print to standard output: give --csv a file")
    for output in (csv_file, html):
        if output is not None and str(output) != "-":
            check_output(output, force=force)
    history = dxt_replay.history(*records, threshold_pct=threshold, alpha=alpha)
    document = history.as_json()
    if html is not None:
        _write_page(document, html, force=force)
    if csv_file is not None:
        _write_csv(history, csv_file, force=force)
    if as_json:
        print_json(document)
    elif str(csv_file) != "-":
        print_sections(history_sections(document, metric))


def _write_page(document: dict[str, object], html: Path, *, force: bool) -> None:
    from dxt_replay.replay.history.history_page import history_page
    from dxt_replay.traces.output import new_file

    with new_file(html, force=force) as stream:
        stream.write(history_page(document).encode("utf-8", "replace"))


def _write_csv(history: History, csv_file: Path, *, force: bool) -> None:
    from dxt_replay.traces.output import new_file

    if str(csv_file) == "-":
        _print_csv(history, sys.stdout.buffer)
        return
    with new_file(csv_file, force=force) as stream:
        _print_csv(history, stream)


def _print_csv(history: History, stream: IO[bytes]) -> None:
    import pyarrow as pa

    from dxt_replay.profiler_merge.analysis.table_formats import write_csv

    write_csv(pa.Table.from_pylist(list(history.rows())), stream)
