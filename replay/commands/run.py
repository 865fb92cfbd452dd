"""`dxt-replay run`: replay a capture on a staged target, alone or under mpiexec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import (
    PATH,
    capture_argument,
    details_option,
    force_option,
    json_option,
    part_options,
)
from dxt_replay.replay.options.choices import ReplayChoices

if TYPE_CHECKING:
    from dxt_replay import Repeats, RunResult
    from dxt_replay.replay.interface.captures import NamedPart


@click.command()
@capture_argument("capture")
@click.option("--target", required=True, metavar="DIR", help="Directory, or s3:// URL, that holds the staged twin.")
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="OUT.capture",
    required=True,
    help="Write the replay to this capture, such as replay.capture.",
)
@family_options(ReplayChoices)
@part_options
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Run N times, into OUT.1.capture, OUT.2.capture ...; print each time and the median.",
)
@force_option
@details_option
@json_option
def command(
    capture: NamedPart,
    target: str,
    output: Path,
    repeat: int,
    **choices: Any,
) -> None:
    """Replay a capture (or a .darshan log), and write the replay as a capture too.

    Under `mpiexec -n R` each process replays its share of the recorded ranks.
    Exits 1 when an operation or close failed, a read or write moved fewer bytes than recorded, or the run was stopped.
    """
    import dxt_replay
    from dxt_replay.replay.commands.processes import ending_together
    from dxt_replay.replay.commands.progress import run_progress
    from dxt_replay.replay.ranks.mpi import connect

    comm = connect()
    result: RunResult | Repeats
    with ending_together(comm), comm.watched(), run_progress(comm.rank == 0) as progress:
        if repeat == 1:
            result = dxt_replay.run(capture, target, output, on_progress=progress, comm=comm, **choices)
        else:
            result = dxt_replay.run_repeatedly(
                capture, target, output, repeat, on_progress=progress, comm=comm, **choices
            )
    if comm.rank == 0:
        _print(result, capture.path)
        if not result.succeeded:
            raise SystemExit(1)


def _print(result: RunResult | Repeats, source: Path) -> None:
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.show.run import repeat_sections, run_sections

    first = result.runs[0] if isinstance(result, dxt_replay.Repeats) else result
    following = ("compare", source, first.capture) if result.succeeded else ()
    if isinstance(result, dxt_replay.Repeats):
        answer(result, repeat_sections, *following)
    else:
        answer(result, run_sections, *following)
