"""`dxt-replay transform`: predict the job with other request sizes, readers or ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import capture_argument, force_option, json_option, output_option
from dxt_replay.replay.options.making import TransformChoices


@click.command()
@capture_argument("capture")
@output_option("OUT.capture", "The capture to write, such as what-if.capture.")
@family_options(TransformChoices)
@force_option
@json_option
def command(capture: Path, output: Path, **choices: Any) -> None:
    """Write a capture (or a .darshan log with a profile) as it would be if the application read in another way.

    The changes are applied in the order of the options below. The result is a capture: stage it, replay it with
    `run --pace steps`, compare it. The assumptions are printed.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.predict import transform_sections

    with unwind_on_signals(), status("transforming"):
        result = dxt_replay.transform(capture, output, **choices)
    answer(result, transform_sections, "stage", output, "--target", "TARGET")
