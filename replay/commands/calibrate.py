"""`dxt-replay calibrate`: measure a file system as a storage model for `simulate`."""

from __future__ import annotations

from pathlib import Path

import click

from dxt_replay.replay.commands.shared_options import force_option, json_option


@click.command()
@click.option(
    "--target",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory on the file system to measure; what is written below it is removed again.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="MODEL.json",
    help="The storage model to write, such as measured.json.",
)
@click.option(
    "--minutes", type=float, default=3.0, show_default=True, help="Time to measure for; more narrows the intervals."
)
@force_option
@json_option
def command(target: Path, output: Path, minutes: float, force: bool, as_json: bool) -> None:
    """Measure a file system, so that `simulate` can predict a training run on it.

    Reads, writes and other calls of many sizes, with up to 64 in flight, are issued as a replay issues them, with the
    page cache dropped before cold reads. Nothing else should use the machine or the file system meanwhile.
    """
    import dxt_replay
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.commands.progress import share_progress
    from dxt_replay.replay.show.calibration_sections import calibration_sections
    from dxt_replay.replay.show.terminal import print_sections

    with share_progress("measuring") as progress:
        done = dxt_replay.calibrate(target, output, minutes=minutes, force=force, on_progress=progress)
    if as_json:
        print_json({"output": str(output), **done.as_json()})
    else:
        print_sections(calibration_sections(done.as_json(), str(output)))
