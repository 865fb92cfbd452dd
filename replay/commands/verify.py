"""`dxt-replay verify`: whether captures and staged twins are what they were when they were written."""

from __future__ import annotations

from pathlib import Path

import click

from dxt_replay.replay.commands.shared_options import PATH, json_option


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="CAPTURE|TARGET...")
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=PATH,
    metavar="FILE",
    help="A log, profile or capture that a capture was made from; those beside the capture are found. Repeatable.",
)
@click.option("--sizes-only", is_flag=True, help="Look at kinds and sizes of a twin's files, not at their bytes: fast.")
@click.option(
    "--most",
    type=click.IntRange(1, 1000),
    default=20,
    metavar="N",
    show_default=True,
    help="Differences of each capture or target that are listed.",
)
@json_option
def command(paths: tuple[Path, ...], sources: tuple[Path, ...], sizes_only: bool, most: int) -> int:
    """Check captures against their own digests, counts and sources, and staged twins against their manifests.

    A capture: every file has its digest, every row is as the format says, the counts agree. A twin: every file is
    there, a plain file with one name, as large as staged and with the bytes that staging makes; nothing else is there.
    HDF5 files of a twin need their capture beside it on the command line. Nothing is written. Exit status: 0 nothing
    differs, 1 something does, 2 wrong use.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.progress import status
    from dxt_replay.replay.show.verify_sections import verified_sections

    with status("verifying"):
        result = dxt_replay.verify(*paths, sources=sources, sizes_only=sizes_only)
    answer(result, lambda verified: verified_sections(verified, most))
    return 0 if result.passed else 1
