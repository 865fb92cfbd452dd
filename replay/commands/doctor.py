"""`dxt-replay doctor`: examine this machine and a directory."""

from __future__ import annotations

import click

from dxt_replay.replay.commands.shared_options import details_option, json_option


@click.command()
@click.argument("directory", required=False, metavar="[DIR|TARGET]")
@details_option
@json_option
def command(directory: str | None) -> int:
    """Examine this machine, and a directory or object store, for all that a recording or a replay needs.

    It loads the compiled cores, the packages and MPI in processes of their own, and starts two MPI processes. It
    reads the limits of open files, threads and memory, and measures how late idle threads wake up. It tries Darshan
    on a small program. In a directory it tries direct I/O and the page cache with a file of 1 MiB, which it removes.
    To an object store (s3:// URL) it sends a PUT of 1 MiB, a GET, a LIST and a DELETE.
    Exits 0 if nothing that is needed is broken, 1 if something is, 2 for wrong use.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.show.make import doctor_sections

    with status("examining"):
        result = dxt_replay.doctor(directory)
    answer(result, doctor_sections)
    return 0 if result.passed else 1
