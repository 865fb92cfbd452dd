"""`dxt-replay capacity`: find how many accelerators a storage carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dxt_replay.replay.commands.shared_options import PATH, json_option


@click.command()
@click.argument("capture", metavar="CAPTURE|WORKLOAD", type=PATH)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--target", type=PATH, metavar="DIR", help="Directory on the storage, where the twins are staged.")
@click.option(
    "--utilisation",
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    default=90.0,
    show_default=True,
    metavar="PCT",
    help="Accelerator utilisation that every run must reach.",
)
@click.option(
    "--most", type=click.IntRange(1, 65536), default=32, show_default=True, metavar="N", help="Most ranks to try."
)
@click.option(
    "--strong",
    is_flag=True,
    help="Share the recorded work among the ranks.  [default: each rank does as much as recorded, with its own files]",
)
@click.option(
    "--storage", metavar="MODEL", help="Begin at the ranks that `simulate` predicts for this model, such as nvme."
)
@click.option("--dry-run", is_flag=True, help="Predict with --storage alone, and replay nothing.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the captures of each load in DIR.  [default: deleted]",
)
@json_option
def command(capture: Path, utilisation: float, target: Path | None, **choices: Any) -> None:
    """Find the largest number of ranks that a storage serves without starving the accelerators.

    Replays the training on more and more ranks until the accelerator utilisation falls below --utilisation. CAPTURE
    can also be a workload such as unet3d_h100, with KEY=VALUE for its keys. The search bisects and repeats both sides
    of the border at the end. One more run without I/O shows whether the storage or this machine is the limit. Under
    `mpiexec -n P` the processes share the ranks.

    Exits 1 if one rank alone is too much for the storage.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer, of_json
    from dxt_replay.replay.commands.processes import ending_together
    from dxt_replay.replay.commands.progress import experiment_progress
    from dxt_replay.replay.ranks.mpi_world import connect
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.capacity_sections import capacity_sections

    comm = connect()
    runs = choices["most"].bit_length() + 4
    with (
        ending_together(comm),
        comm.watched(),
        unwind_on_signals(),
        experiment_progress(comm.rank == 0, runs) as running,
    ):
        found = dxt_replay.capacity(
            capture, target, utilisation_pct=utilisation, on_progress=running, comm=comm, **choices
        )
    if comm.rank:
        return
    answer(found, of_json(capacity_sections))
    if found.ranks == 0 and found.limited_by == "storage":
        raise SystemExit(1)
