"""`dxt-replay report`: a capture, or a source and its replay side by side, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import (
    PATH,
    capture_argument,
    filter_options,
    force_option,
    json_option,
    output_option,
    worker_options,
)
from dxt_replay.replay.options.looking import PairChoices

if TYPE_CHECKING:
    from dxt_replay.replay.interface.captures import NamedPart
    from dxt_replay.traces.workers import Workers


@click.command()
@capture_argument("capture")
@click.argument("replay", type=PATH, required=False)
@output_option("FILE", "The page, such as report.html.")
@filter_options
@worker_options
@force_option
@family_options(PairChoices)
@json_option
def command(
    capture: NamedPart,
    replay: Path | None,
    output: Path,
    workers: Workers,
    **choices: Any,
) -> None:
    """Write a page about a capture (or a .darshan log): health, findings, timeline, bandwidth, sizes, steps, files.

    The page is one HTML file that needs no network. With REPLAY, a replay of the capture, it shows both side by side
    and their comparison. The options choose the part that it shows, such as one second in full detail.
    """
    import dxt_replay
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.commands.session import current
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.traces.text import printable
    from dxt_replay.traces.units import format_bytes

    with unwind_on_signals(), status("drawing"):
        report = dxt_replay.report(
            capture.path, replay, output=output, chosen=capture.part(), executor=workers, **choices
        )
    if current().as_json:
        print_json(report.as_json())
    else:
        click.echo(f"{printable(str(report.path))}: {format_bytes(report.bytes)}, open it in a browser")
