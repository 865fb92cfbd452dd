"""`dxt-replay capacity`: find how many accelerators a storage carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import PATH, json_option
from dxt_replay.replay.options.choices import CapacityChoices


@click.command()
@click.argument("capture", metavar="CAPTURE|WORKLOAD", type=PATH)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--target", required=True, metavar="DIR", help="Directory on the storage, or s3:// URL, for the twins.")
@family_options(CapacityChoices)
@json_option
def command(capture: Path, target: str, **choices: Any) -> None:
    """Find the largest number of ranks that a storage serves without starving the accelerators.

    Replays the training on more and more ranks, each with files of its own, until the accelerator utilisation falls
    below --utilisation. CAPTURE can also be a workload such as unet3d_h100, with KEY=VALUE for its keys. The search
    bisects and repeats both sides of the border at the end. One more run without I/O shows whether the storage or this
    machine is the limit. Under `mpiexec -n P` the processes share the ranks.

    Exits 1 if one rank alone is too much for the storage.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.processes import ending_together
    from dxt_replay.replay.commands.progress import experiment_progress
    from dxt_replay.replay.ranks.mpi import connect
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.predict import capacity_sections

    comm = connect()
    runs = choices["most"].bit_length() + 4
    with (
        ending_together(comm),
        comm.watched(),
        unwind_on_signals(),
        experiment_progress(comm.rank == 0, runs) as running,
    ):
        found = dxt_replay.capacity(capture, target, on_progress=running, comm=comm, **choices)
    if comm.rank:
        return
    answer(found, capacity_sections)
    if found.ranks == 0 and found.limited_by == "storage":
        raise SystemExit(1)
