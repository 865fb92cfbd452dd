"""`dxt-replay report`: a capture, or a source and its replay side by side, as one HTML page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replay.commands.options import (
    capture_argument,
    different_runs_option,
    filter_options,
    force_option,
    json_option,
)
from traces.errors import UsageError

if TYPE_CHECKING:
    from traces.part import Part
    from traces.store.reader import Capture
    from traces.store.relation import Relation


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
@different_runs_option
@json_option
def command(
    capture: Path,
    replay: Path | None,
    output: Path,
    chosen_part: Callable[[], Part],
    force: bool,
    different_runs: bool,
    as_json: bool,
) -> None:
    """A page about a capture (or a .darshan log): health, findings, timeline, bandwidth, sizes, steps, files.

    One HTML file that needs no network. With REPLAY, a replay of the capture, both stand side by side, and how faithful
    it is. The options choose what the page is about, such as a stretch of time in full detail.
    """
    from replay.commands.output import print_json
    from replay.commands.progress import status
    from traces.output import check_output, new_file

    part = chosen_part()
    if replay is not None and part.is_window:
        raise UsageError("--from and --until are times of one capture: leave them out where there are two")
    check_output(output, force=force)
    with status("drawing"):
        text = _page(capture, replay, part, different_runs=different_runs).encode("utf-8", "replace")
    with new_file(output, force=force) as stream:
        stream.write(text)
    if as_json:
        print_json({"report": str(output), "bytes": len(text)})
    else:
        _print(output, len(text))


def _page(capture: Path, replay: Path | None, part: Part, *, different_runs: bool) -> str:
    from profiler_merge.analysis.lane_bars import MOST_BARS
    from profiler_merge.analysis.overview import overview
    from replay.commands.options import opened
    from replay.show.page.html import report_page
    from traces.store.part_capture import part_of
    from traces.store.relation import check_pair

    with opened(capture) as source:
        if replay is None:
            return report_page(overview(part_of(source, part)))
        with opened(replay) as replayed:
            relation = check_pair(source, replayed, different_runs=different_runs)
            return _both(source, replayed, part, MOST_BARS // 2, relation)


def _both(source: Capture, replay: Capture, part: Part, most_bars: int, relation: Relation) -> str:
    """The page of two: of the source, what the replay replays."""
    from profiler_merge.analysis.overview import overview
    from replay.fidelity.compare import compare
    from replay.show.page.data import lag_course
    from replay.show.page.html import report_page
    from traces.store.part_capture import part_of, part_replayed
    from traces.store.relation import Relation

    compared = source if relation is Relation.DIFFERENT else part_replayed(source, replay)
    return report_page(
        overview(part_of(compared, part), most_bars=most_bars),
        overview(part_of(replay, part), most_bars=most_bars),
        compare(source, replay, relation=relation).as_json(),
        lag_course(replay),
    )


def _print(output: Path, size: int) -> None:
    from traces.text import printable
    from traces.units import format_bytes

    click.echo(f"{printable(str(output))}: {format_bytes(size)}, open it in a browser")
