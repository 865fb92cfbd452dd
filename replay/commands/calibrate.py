"""`dxt-replay calibrate`: measure a file system or an object store as a storage model for `simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import details_option, force_option, json_option, output_option
from dxt_replay.replay.options.choices import CalibrateChoices


@click.command()
@click.option(
    "--target",
    required=True,
    metavar="DIR",
    help="Directory on the file system, or s3:// URL, to measure; all that is written below it is removed again.",
)
@output_option("MODEL.json", "The storage model to write, such as measured.json.")
@family_options(CalibrateChoices)
@force_option
@details_option
@json_option
def command(target: str, output: Path, **choices: Any) -> None:
    """Measure a file system or an object store, so that `simulate` can predict a training run on it.

    Issues reads, writes and other calls of many sizes, up to 64 in flight, with the engine of a replay. The page cache
    is dropped before cold reads. On an object store: GETs of many sizes on up to 64 connections, PUT, HEAD and other
    requests; without the right to write, GETs and HEADs of a staged twin. The result lists what was not measured.

    Nothing else should use the machine or the storage meanwhile.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import share_progress
    from dxt_replay.replay.show.predict import calibration_sections

    with share_progress("measuring") as progress:
        done = dxt_replay.calibrate(target, output, on_progress=progress, **choices)
    answer({"output": str(output), **done.as_json()}, lambda _: calibration_sections(done, str(output)))
