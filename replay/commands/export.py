"""`dxt-replay export`: a capture as a file of another tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import OneOf, family_options
from dxt_replay.replay.commands.shared_options import (
    capture_argument,
    force_option,
    json_option,
    output_option,
)
from dxt_replay.replay.options.choices import FORMATS
from dxt_replay.replay.options.looking import ExportChoices
from dxt_replay.traces.errors import UsageError

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.export.exported import Exported

STANDARD_OUTPUT = Path("-")


@click.command()
@capture_argument("capture")
@click.option("--to", required=True, type=OneOf(FORMATS), help="The format.")
@output_option("OUT", "OUT.darshan, OUT.json.gz, OUT.csv or - (standard output), or a directory for fio.")
@family_options(ExportChoices)
@force_option
@json_option
def command(
    capture: Path,
    to: str,
    output: Path,
    **choices: Any,
) -> None:
    """Export a capture (or a .darshan log) for other tools.

    darshan: a log with DXT segments and the POSIX counters of the operations, for pydarshan, darshan-parser and the
    tools above them.

    chrome: a trace for ui.perfetto.dev, with operations, spans and the due times of a replay.

    csv: one row per operation, times in seconds with nine digits.

    fio: a directory with an iolog per lane, the job file and a script that replays them on the staged twin.
    """
    import dxt_replay
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.commands.session import current
    from dxt_replay.replay.ranks.stopping import unwind_on_signals

    if output == STANDARD_OUTPUT:
        if to != "csv" or current().as_json:
            raise UsageError("--output - is for --to csv without --json: give a file name")
        _csv_to_standard_output(capture)
        return
    with unwind_on_signals(), status("exporting"):
        exported = dxt_replay.export(capture, to, output, **choices)
    if current().as_json:
        print_json(exported.as_json())
    else:
        _print(exported)


def _csv_to_standard_output(capture: Path) -> None:
    from dxt_replay.profiler_merge.export.csv_rows import stream_csv
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.interface.captures import NamedPart, opened

    with opened(NamedPart(path=capture, announce=status)) as source:
        # bytes: the text layer would write another encoding, or other line ends
        stream_csv(source, sys.stdout.buffer)


def _print(exported: Exported) -> None:
    from dxt_replay.traces.text import printable
    from dxt_replay.traces.units import format_bytes, format_counted

    size = format_bytes(sum(file.bytes for file in exported.files))
    files, operations = format_counted(len(exported.files), "file"), format_counted(exported.operations, "operation")
    click.echo(f"Wrote {operations} as {exported.format} to {printable(exported.output)}: {files}, {size}")
    for note in exported.notes:
        click.echo(printable(note))
