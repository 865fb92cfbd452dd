"""`dxt-replay report`: a capture, or a source and its replay side by side, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from replay.commands.options import capture_argument, filter_options, force_option, json_option
from traces.errors import UsageError

if TYPE_CHECKING:
    from profiler_merge.analysis.filters import Filters
    from replay.plan.selection import Selection
    from traces.store.reader import Capture


@click.command()
@capture_argument("capture")
@click.argument("replay", type=click.Path(path_type=Path), required=False)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The page, such as report.html.",
)
@filter_options
@force_option
@json_option
def command(
    capture: Path,
    replay: Path | None,
    output: Path,
    path: tuple[str, ...],
    exclude: tuple[str, ...],
    op: tuple[str, ...],
    api: tuple[str, ...],
    ranks: str | None,
    begin: str | None,
    until: str | None,
    steps: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """A page about a capture (or a .darshan log): health, findings, timeline, bandwidth, sizes, steps, files.

    One HTML file that needs no network. With REPLAY, a replay of the capture, both stand side by side, and how faithful
    it is. The options choose what the page is about, such as a stretch of time in full detail.
    """
    from profiler_merge.analysis.filters import Filters
    from replay.commands.output import print_json
    from replay.commands.progress import status
    from replay.plan.selection import Selection
    from traces.output import check_output, new_file

    part = Selection.parse(ranks=ranks, begin=begin, until=until, steps=steps)
    filters = Filters(
        paths=path,
        exclude=exclude,
        ranks=part.ranks or (),
        ops=op,
        apis=tuple(name.upper() for name in api),
        from_ns=part.from_ns,
        until_ns=part.until_ns,
        steps=part.steps,
    )
    if replay is not None and filters.windowed:
        raise UsageError("--from and --until are times of one capture: leave them out where there are two")
    check_output(output, force=force)
    with status("drawing"):
        text = _page(capture, replay, part, filters).encode("utf-8", "replace")
    with new_file(output, force=force) as stream:
        stream.write(text)
    if as_json:
        print_json({"report": str(output), "bytes": len(text)})
    else:
        _print(output, len(text))


def _page(capture: Path, replay: Path | None, part: Selection, filters: Filters) -> str:
    from profiler_merge.analysis.lane_bars import MOST_BARS
    from profiler_merge.analysis.overview import overview
    from replay.commands.options import check_order, opened
    from replay.show.page.html import report_page

    with opened(capture) as source:
        part.check(source)
        if replay is None:
            return report_page(overview(source, filters=filters))
        with opened(replay) as replayed:
            check_order(source, replayed)
            return _both(source, replayed, filters, MOST_BARS // 2)


def _both(source: Capture, replay: Capture, filters: Filters, most_bars: int) -> str:
    """The page of two: of the source, what the replay replays."""
    from profiler_merge.analysis.overview import overview
    from replay.fidelity.compare import compare
    from replay.plan.selection import as_replayed
    from replay.show.page.data import lag_course
    from replay.show.page.html import report_page

    part = as_replayed(source, replay)
    return report_page(
        overview(part, filters=filters, most_bars=most_bars),
        overview(replay, filters=filters, most_bars=most_bars),
        compare(source, replay).as_json(),
        lag_course(replay),
    )


def _print(output: Path, size: int) -> None:
    from replay.twin.containment import printable
    from traces.units import format_bytes

    click.echo(f"{printable(str(output))}: {format_bytes(size)}, open it in a browser")
