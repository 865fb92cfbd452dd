"""`dxt-replay transform`: what if the application read in another way, or ran on more ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dxt_replay.replay.commands.shared_options import capture_argument, force_option, json_option, output_option


@click.command()
@capture_argument("capture")
@output_option("OUT.capture", "The capture to write, such as what-if.capture.")
@click.option("--chunk", metavar="SIZE", help="Store HDF5 data in chunks of this size, such as 1MiB.")
@click.option(
    "--compression",
    metavar="NAME:RATIO",
    help="Compress the data: gzip:0.6 stores 60 % of the bytes; gzip:0.6:250MB/s sets the decoder's speed, too.",
)
@click.option("--transfer-size", metavar="SIZE", help="Read streams in requests of this size, such as 1MiB.")
@click.option("--batch", type=int, metavar="N", help="Let N batches be one: steps are fewer and N times as large.")
@click.option("--readers", type=int, metavar="N", help="Readers of each rank; 0: the training thread itself reads.")
@click.option("--prefetch", type=int, metavar="N", help="Batches that readers are ahead of the training loop.")
@click.option(
    "--preprocess-speed", type=float, default=1.0, metavar="X", help="Preprocess X times as fast, such as 2 or 0.5."
)
@click.option("--compute-speed", type=float, default=1.0, metavar="X", help="Compute X times as fast, such as 4.")
@click.option("--ranks", type=int, metavar="N", help="Share the work out among N ranks.")
@click.option("--weak", is_flag=True, help="With --ranks: each rank has as much to do as before.")
@force_option
@json_option
def command(capture: Path, output: Path, **choices: Any) -> None:
    """Write a capture (or a .darshan log with a profile) as it would be if the application read in another way.

    The changes are applied in the order of the options below. The result is a capture: stage it, replay it with
    `run --pace steps`, compare it. What had to be assumed is printed.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.transform_sections import transform_sections

    with unwind_on_signals(), status("transforming"):
        result = dxt_replay.transform(capture, output, **choices)
    answer(result, transform_sections, "stage", output, "--target", "TARGET")
