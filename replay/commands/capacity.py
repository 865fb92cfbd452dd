"""`dxt-replay capacity`: find how many accelerators a storage carries."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import PATH, force_option, json_option
from dxt_replay.replay.options.choices import CapacityChoices


@click.command()
@click.argument("capture", metavar="CAPTURE|WORKLOAD", type=PATH)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--target", metavar="DIR", help="Directory on the storage, or s3:// URL, for the twins.")
@family_options(CapacityChoices)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the answer, its curves and all figures as an HTML page that needs no network.",
)
@force_option
@json_option
def command(capture: Path, target: str | None, html: Path | None, force: bool, **choices: Any) -> None:
    """Find the largest number of ranks that a storage serves without starving the accelerators.

    Replays the training on more and more ranks until the accelerator utilisation falls below --utilisation. CAPTURE
    can also be a workload such as unet3d_h100, with KEY=VALUE for its keys. The search bisects and repeats both sides
    of the border at the end. One more run without I/O shows whether the storage or this machine is the limit. Under
    `mpiexec -n P` the processes share the ranks.

    Exits 1 if one rank alone is too much for the storage.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.processes import ending_together
    from dxt_replay.replay.commands.progress import experiment_progress
    from dxt_replay.replay.ranks.comm import first_does
    from dxt_replay.replay.ranks.mpi_world import connect
    from dxt_replay.replay.ranks.stopping import unwind_on_signals
    from dxt_replay.replay.show.capacity_sections import capacity_sections
    from dxt_replay.replay.show.page.capacity_page import capacity_page
    from dxt_replay.traces.output import check_output, new_file

    comm = connect()
    runs = choices["most"].bit_length() + 4
    with (
        ending_together(comm),
        comm.watched(),
        unwind_on_signals(),
        experiment_progress(comm.rank == 0, runs) as running,
    ):
        if html is not None:
            first_does(comm, partial(check_output, html, force=force))
        found = dxt_replay.capacity(capture, target, on_progress=running, comm=comm, **choices)
    if comm.rank:
        return
    if html is not None:
        with new_file(html, force=force) as page:
            page.write(capacity_page(found).encode("utf-8", "replace"))
    answer(found, capacity_sections)
    if found.ranks == 0 and found.limited_by == "storage":
        raise SystemExit(1)
