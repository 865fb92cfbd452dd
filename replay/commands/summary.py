"""`dxt-replay summary`: the totals of a capture."""

from __future__ import annotations

from pathlib import Path

import click

from replay.commands.options import capture_argument, exclude_option, json_option


@click.command()
@capture_argument("capture")
@click.option("--by", type=click.Choice(["rank", "file", "step", "size"]), help="Add a table of totals per group.")
@exclude_option
@click.option(
    "--compat-vanidl", is_flag=True, help="VaniDL's numbers: times in 0.1 ms, 0 becomes 1 ms, no path with .py."
)
@json_option
def command(capture: Path, by: str | None, exclude: tuple[str, ...], compat_vanidl: bool, as_json: bool) -> None:
    """Summarise a capture (or a .darshan log): operations, bytes, times, patterns.

    Totals count what was traced, once per file where several layers recorded it.
    """
    from profiler_merge.analysis.durations import VANIDL_EXCLUDES, DurationRule, recorded_durations, vanidl_durations
    from profiler_merge.analysis.summary import summarise
    from replay.commands.options import opened
    from replay.commands.output import print_json
    from replay.commands.progress import status

    with opened(capture) as source:
        durations: DurationRule = recorded_durations
        if compat_vanidl:
            durations, exclude = vanidl_durations(source.info), (*exclude, *VANIDL_EXCLUDES)
        with status("summarising"):
            summary = summarise(source, exclude=exclude, by=by, durations=durations).as_json()
    if as_json:
        print_json(summary)
        return
    from replay.report import print_summary

    print_summary(summary)
