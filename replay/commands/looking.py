"""Looks at captures: totals, tables, findings, timelines, figures and the page."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from dxt_replay.replay.commands import session
from dxt_replay.replay.commands.captures import (
    CaptureOrPath,
    DifferentRuns,
    Floor,
    PartOption,
    Source,
    floor_of,
    held,
    opened,
    part_named,
    path_maps,
)  # fmt: skip
from dxt_replay.replay.commands.face import (
    Argument,
    Command,
    Force,
    Option,
    PathLike,
    PathMaps,
    command,
    output,
    public,
)  # fmt: skip
from dxt_replay.traces.errors import DxtReplayError, MissingDependencyError, UsageError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from plotly.graph_objects import Figure

    from dxt_replay.profiler_merge.analysis.finding import Finding
    from dxt_replay.profiler_merge.analysis.named_tables import Views
    from dxt_replay.profiler_merge.analysis.overview import Overview
    from dxt_replay.profiler_merge.analysis.summary import Summary
    from dxt_replay.profiler_merge.analysis.timeline import Timeline
    from dxt_replay.traces.storage_limit import Limit, StorageLimit
    from dxt_replay.traces.store.reader import Capture
    from dxt_replay.traces.workers import Work, Workers

GROUPINGS = ("rank", "file", "format", "step", "size")
"""Those of `profiler_merge.analysis.tables`."""

STORED = ("operations", "spans")
"""Tables as the capture stores them, read whole: take a `part` of a large capture first."""


def __getattr__(name: str) -> Any:
    """TABLES: the names that `table` takes; those of the analysis need imports that --help does without.

    The tables "tfrecords" and "datasets" open the recorded files.
    """
    if name != "TABLES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dxt_replay.profiler_merge.analysis.tables import TABLES

    return (*TABLES, *(f"by-{each}" for each in GROUPINGS), *STORED)


def summary(capture: CaptureOrPath, *, executor: Work = None) -> Summary:
    """Totals of a capture: operations, bytes, times, transfer sizes, access pattern, steps, coverage.

        dxt_replay.summary("run.capture").bytes.read

    Totals count traced operations, and a file once if several layers recorded it. `executor` shares the work.
    Raises: CaptureError when the capture is damaged.
    """
    from dxt_replay.profiler_merge.analysis.summary import summarise
    from dxt_replay.traces.workers import workers_of

    with opened(capture) as source:
        return summarise(source, workers=workers_of(executor))


def storage_limit(capture: CaptureOrPath, *, curve: bool = False) -> StorageLimit:
    """How long a training would take with infinitely fast storage, by its causal model.

        limit = dxt_replay.storage_limit("run.capture", curve=True)
        limit.limit_pct, limit.enough

    `curve`: also at multiples of the recorded speed. The capture needs training steps.
    Raises: NoStorageLimitError (a ReplayError) with the reason why the limit is unknown; CaptureError when the
    capture is damaged.
    """
    from dxt_replay.profiler_merge.analysis.steady_loop import waits_are_real
    from dxt_replay.replay.causal.storage_limit import storage_limit as work_out
    from dxt_replay.traces.storage_limit import NoStorageLimitError

    with opened(capture) as source:
        if not waits_are_real(source.info):
            raise NoStorageLimitError("a replay at this pace does not wait as training does")
        return work_out(source, curve=curve)


def table(capture: CaptureOrPath, name: str, *, maps: PathMaps | None = None, executor: Work = None) -> pd.DataFrame:
    """One of TABLES as a DataFrame; units are in the column names.

        steps = dxt_replay.table(capture, "steps")
        steps.sort_values("duration_ns").tail(5)

    `maps`: places of the recorded files, which the tables "tfrecords" and "datasets" open. `attrs["unread"]` of these
    tables lists the files that could not be opened, with the reason.
    Raises: UsageError for another name; CaptureError when the capture is damaged.
    """
    from dxt_replay.profiler_merge.analysis.named_tables import summary_table, to_pandas

    _check_tables([name], __getattr__("TABLES"))
    with opened(capture) as source:
        if name in STORED:
            return to_pandas(_stored_table(source, name))
        if name.startswith("by-"):
            return to_pandas(summary_table(tables(source, by=name.removeprefix("by-"), executor=executor).summary))
        made = tables(source, (name,), maps=maps, executor=executor)
        found = made.tables[name]
        frame = to_pandas(found)
        if made.unread:
            frame.attrs["unread"] = dict(made.unread)
        return frame


@public
def tables(
    capture: CaptureOrPath,
    names: Collection[str] = (),
    *,
    by: Annotated[str | None, Option("Add a table of totals per group.", choices=GROUPINGS)] = None,
    maps: Annotated[
        PathMaps | None,
        Option("For tfrecords and datasets: files below PREFIX are in DIR; repeatable.", "PREFIX=DIR", flags="--map"),
    ] = None,
    bin: Annotated[
        str | None, Option("Bin of the timeline, such as 1s or 5ms.", "TIME", name="bin_width", flags="--bin")
    ] = None,
    bins: Annotated[int | None, Option("About how many bins the timeline has if no width is given.", flags="")] = None,
    executor: Work = None,
) -> Views:
    """The summary and several tables of the analysis in as few passes as they need, as Arrow tables.

        made = dxt_replay.tables(capture, ["steps", "files"], by="rank")
        made.summary, made.tables["steps"]

    `executor` shares the work.
    Raises: CaptureError when the capture is damaged; UsageError for another name, too many bins, or the table
    "dependencies" of too many operations.
    """
    from dxt_replay.profiler_merge.analysis.named_tables import DEPENDENCIES, STORAGE_LIMIT, table_of, views
    from dxt_replay.profiler_merge.analysis.tables import TABLES
    from dxt_replay.traces.units import parse_duration_ns
    from dxt_replay.traces.workers import workers_of

    def located(path: str) -> Path:
        from dxt_replay.replay.target.placement import locate

        return locate(path, rules)

    def dependencies() -> pa.Table:
        from dxt_replay.replay.causal.explain import dependency_rows

        return table_of(dependency_rows(source), TABLES[DEPENDENCIES].schema)

    def model() -> dict[str, Any] | None:
        from dxt_replay.replay.causal.explain import explanation

        return explanation(source)

    _check_tables(names)
    rules = path_maps(maps)
    width = None if bin is None else parse_duration_ns(bin, "--bin")
    source = held(capture)
    asked = not names or STORAGE_LIMIT in names or "findings" in names  # no more is at stake than storage costs
    limit = limit_of(source, curve=STORAGE_LIMIT in names) if asked else None
    return views(
        source,
        names,
        by=by,
        bin_ns=width,
        bins=bins,
        locate=located,
        limit=limit,
        dependencies=dependencies,
        model=model,
        workers=workers_of(executor),
    )


def _check_tables(names: Collection[str], known: Collection[str] | None = None) -> None:
    """Raises: UsageError for a name that is none of `known`, by default the tables of --show."""
    if known is None:
        from dxt_replay.profiler_merge.analysis.tables import TABLES

        known = TABLES
    for name in names:
        if name not in known:
            raise UsageError(f"{name!r} is not a table: choose {', '.join(known)}")


def limit_of(capture: Capture, *, curve: bool) -> Limit | None:
    """`storage_limit`, or the reason why it is unknown; None for a capture without a training that waits."""
    from dxt_replay.profiler_merge.analysis.steady_loop import waits_are_real
    from dxt_replay.traces.schema import SPAN_KINDS, codes
    from dxt_replay.traces.storage_limit import NoStorageLimitError

    if not waits_are_real(capture.info) or SPAN_KINDS.index("step") not in codes(capture.spans, "kind"):
        return None
    try:
        return storage_limit(capture, curve=curve)
    except NoStorageLimitError as error:
        return error


def _stored_table(capture: Capture, name: str) -> pa.Table:
    import pyarrow as pa

    from dxt_replay.traces.schema import OPS_SCHEMA

    if name == "spans":
        return capture.spans
    return pa.Table.from_batches(capture.operations(columns=OPS_SCHEMA.names), schema=OPS_SCHEMA)


def findings(capture: CaptureOrPath, *, executor: Work = None) -> tuple[Finding, ...]:
    """Find problems in a capture; each finding has its evidence, threshold and remedy.

        for finding in dxt_replay.findings(capture):
            print(finding.title, finding.remedy)

    Raises: CaptureError when the capture is damaged.
    """
    from dxt_replay.profiler_merge.analysis.findings import findings as find
    from dxt_replay.traces.workers import workers_of

    with opened(capture) as source:
        limit = limit_of(source, curve=False)
        return find(source, workers_of(executor), None if limit is None else limit.saved_between_s)


def timeline(
    capture: CaptureOrPath,
    *,
    bin: str | None = None,
    bins: int | None = None,
    per_rank: bool = False,
    executor: Work = None,
) -> Timeline:
    """Operations, bytes, bandwidth and shares of time over time, in bins of `bin` ("100ms") or in about `bins` bins.

        course = dxt_replay.timeline(capture, bin="100ms")
        course.matrix("read_mib_s")

    Raises: UsageError for too many bins; CaptureError when the capture is damaged.
    """
    from dxt_replay.profiler_merge.analysis import timeline as module
    from dxt_replay.traces.units import parse_duration_ns
    from dxt_replay.traces.workers import workers_of

    width = None if bin is None else parse_duration_ns(bin, "bin (--bin)")
    count = module.DEFAULT_BINS if bins is None else bins
    with opened(capture) as source:
        return module.timeline(source, bin_ns=width, bins=count, per_rank=per_rank, workers=workers_of(executor))


def figure(capture: CaptureOrPath, name: str) -> Figure:
    """One of FIGURES as a plotly figure.

        dxt_replay.figure(capture, "timeline").show()

    `timeline`: bars per rank and lane; `bandwidth`: with operations in flight and shares of time; `heat`: ranks over
    time; `sizes`: of requests; `steps`: where their time went; `lag`: of a replay.
    Raises: UsageError for another name, or when the capture has no steps or is not a replay; MissingDependencyError
    without plotly; CaptureError when the capture is damaged.
    """
    from dxt_replay.replay.show.page.chart_data import FIGURES, drawing

    if name not in FIGURES:
        raise UsageError(f"{name!r} is not a figure: choose {', '.join(FIGURES)}")
    try:
        from plotly.graph_objects import Figure
    except ImportError as error:
        raise MissingDependencyError("plotly", "a figure", "pip install 'dxt-replay[charts]'") from error
    with opened(capture) as source:
        return Figure(drawing(source, name), skip_invalid=False)


# -------------------------------------------------------------------------------------------- summary
TERMINAL_BINS = 40
_OF_ONE_JOB = ("by", "show", "maps", "bin_width", "part")


class _Command(Command):
    """A command whose help lists the tables, as many to a line as fit."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from dxt_replay.profiler_merge.analysis.tables import TABLES

        with formatter.section("Tables (--show; docs/tables.md explains them)"):
            formatter.write_text(", ".join(TABLES))
        super().format_options(ctx, formatter)


@command(name="summary", like=tables, tidy=True, cls=_Command)
def _summary(
    captures: Annotated[Sequence[PathLike], Argument("CAPTURE...")],
    *,
    show: Annotated[Sequence[str], Option("Print this table instead of the totals; repeatable.", "TABLE")] = (),
    sort: Annotated[str | None, Option("For several jobs: the order, largest first.", "COLUMN")] = None,
    part: PartOption = (),
    output: Annotated[
        PathLike | None,
        output("FILE", "Write the one table asked for as FILE.csv or FILE.parquet; - is CSV on standard output."),
    ] = None,
    force: Force = False,
    executor: Workers,
    by: str | None,
    **choices: Any,
) -> int:
    """Summarise a capture (or a .darshan log): operations, bytes, times, patterns.

    The first lines say what ran and how much time storage can have cost it. Totals count traced operations, and count
    a file once if several layers recorded it.

    For several captures or logs, or a folder of many, it prints a table with a line for each job.
    """
    from dxt_replay.profiler_merge.analysis.named_tables import summary_table
    from dxt_replay.replay.show.tables import summary_or_tables

    names = tuple(dict.fromkeys(show))
    place = None if output is None else Path(output)
    if place is not None:
        _check_output(place, one=len(names) + (by is not None) < 2, force=force)
    _check_tables(names)
    paths = [Path(path) for path in captures]
    if _are_many(paths):
        return _print_jobs(paths, executor, sort=sort or "name", place=place, force=force)
    if sort is not None:
        raise UsageError(f"--sort orders several jobs, and {paths[0]} is one: leave it out")
    with opened(paths[0], part=part) as source:
        with session.status("summarising"):
            found = tables(source, names, by=by, bins=TERMINAL_BINS, executor=executor, **choices)
            _check_opened(found, names)
            sections = None if place is not None or session.current().as_json else summary_or_tables(found)
        if sections is not None:
            session.print_answer(sections)
        elif place is None:
            session.print_json(found.as_json())
        else:
            _write_table(found.tables[names[0]] if names else summary_table(found.summary), place, force=force)
    return 0


_STANDARD_OUTPUT = Path("-")


def _check_output(place: Path, *, one: bool, force: bool) -> None:
    """Raises: UsageError for a file of another kind, or more than one table; TargetError if the file exists."""
    from dxt_replay.traces.output import check_output

    if place != _STANDARD_OUTPUT and place.suffix not in (".csv", ".parquet"):
        raise UsageError(
            f"--output {place}: give a name that ends in .csv or .parquet, or - for CSV on standard output"
        )
    if not one or session.current().as_json:
        raise UsageError(f"--output {place} writes one table: give one --show, or --by, and no --json")
    if place != _STANDARD_OUTPUT:
        check_output(place, force=force)


def _write_table(table: Any, place: Path, *, force: bool) -> None:
    """Write an Arrow table. Raises: TargetError when it cannot be written."""
    import pyarrow.parquet as pq

    from dxt_replay.profiler_merge.analysis.named_tables import write_csv
    from dxt_replay.traces.output import new_file

    if place == _STANDARD_OUTPUT:
        write_csv(table, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with new_file(place, force=force) as stream:
        if place.suffix == ".csv":
            write_csv(table, stream)
        else:
            pq.write_table(table, stream, compression="zstd")


def _are_many(paths: Sequence[Path]) -> bool:
    """Whether the user named several jobs, or a folder that does not hold exactly one."""
    path = paths[0]
    if len(paths) > 1:
        return True
    if not path.is_dir() or (path / "capture.json").exists() or (path / "ops").exists():
        return False
    from dxt_replay.replay.jobs import find_jobs  # a capture needs no readers of logs

    try:
        found, _ = find_jobs([path], captures=True)
    except DxtReplayError:
        return False  # opening it as one job says what is wrong
    return len(found) > 1 or not found[0].logs


def _print_jobs(paths: list[Path], executor: Workers, *, sort: str, place: Path | None, force: bool) -> int:
    """Print or write a line for each job. Returns the exit status: 1 if a job could not be read."""
    if given := session.given_options(_OF_ONE_JOB):
        raise UsageError(f"{given[0]} is for one job: leave it out, or name one capture")
    from dxt_replay.replay.jobs import summarise_each

    with session.progress(session.of_things("summarised", "jobs")) as on_job:
        made = summarise_each(paths, sort=sort, executor=executor, on_job=on_job)
    if place is None:
        session.answer(made)
    else:
        _write_table(made.table(), place, force=force)
    return int(made.failed > 0)


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


# --------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The page that `report` wrote, and its size."""

    path: Path
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay report --json` prints."""
        return {"report": str(self.path), "bytes": self.bytes}

    def _repr_html_(self) -> str:
        from html import escape

        name = escape(str(self.path))
        return f'<a href="{name}">{name}</a>'


@command(tidy=True)
def report(
    capture: Source,
    replay: Annotated[CaptureOrPath | None, Argument("REPLAY")] = None,
    *,
    output: Annotated[PathLike, output("FILE", "The page, such as report.html.")],
    part: PartOption = (),
    different_runs: DifferentRuns = False,
    floor: Floor = (),
    force: Force = False,
    executor: Work = None,
) -> Report:
    """Write a page about a capture (or a .darshan log): health, findings, timeline, bandwidth, sizes, steps, files.

    The page is one HTML file that needs no network. With REPLAY, a replay of the capture, it shows both side by side
    and their comparison. --part chooses what it shows, such as one second in full detail.

    In Python:

        dxt_replay.report("run.capture", output="report.html")

    Raises: UsageError when the two are not source and replay, for a window of time of two captures, or a `floor` that
    is not of this job; TargetError for `output`.
    """
    from dxt_replay.replay.compare.comparison import compare
    from dxt_replay.replay.show.page.chart_data import lag_course
    from dxt_replay.replay.show.page.page import report_page
    from dxt_replay.traces.output import check_output, new_file
    from dxt_replay.traces.store.part_capture import part_of, part_replayed
    from dxt_replay.traces.store.relation import Relation, check_pair
    from dxt_replay.traces.workers import workers_of

    chosen, workers = part_named(part), workers_of(executor)
    if replay is not None and chosen.is_window:
        raise UsageError("--part from= and until= are times of one capture: leave them out where there are two")
    if replay is None and floor:
        raise UsageError("--floor needs a replay beside the capture: name both, or leave the option out")
    check_output(Path(output), force=force)
    with session.status("drawing"), ExitStack() as stack:
        source = stack.enter_context(opened(capture))
        if replay is None:
            text = report_page(_overview(part_of(source, chosen), 1, workers))
        else:
            replayed = stack.enter_context(opened(replay))
            relation = check_pair(source, replayed, different_runs=different_runs)
            noise = None
            if floor:
                noise = floor_of(stack, floor, source, replayed)
            compared = source if relation is Relation.DIFFERENT else part_replayed(source, replayed)
            text = report_page(
                _overview(part_of(compared, chosen), 2, workers),
                _overview(part_of(replayed, chosen), 2, workers),
                compare(source, replayed, relation=relation, floor=noise, workers=workers),
                lag_course(replayed),
            )
    encoded = text.encode("utf-8", "replace")
    with new_file(Path(output), force=force) as stream:
        stream.write(encoded)
    return Report(path=Path(output), bytes=len(encoded))


def _overview(capture: Capture, captures: int, workers: Workers) -> Overview:
    """The figures of a capture on a page, with its storage limit. On a page of two captures each has half the bars."""
    from dxt_replay.profiler_merge.analysis.bars import MOST_BARS
    from dxt_replay.profiler_merge.analysis.overview import overview

    limit = limit_of(capture, curve=True)
    return overview(capture, most_bars=MOST_BARS // captures, workers=workers, limit=limit)
